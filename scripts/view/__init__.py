"""The output on a terminal: tables, the live line, questions."""
