"""The results of a run: summary, report, tables, and the winners as files."""
