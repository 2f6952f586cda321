"""What is left when a run has ended: summary, report, tables, and the winners as files."""
