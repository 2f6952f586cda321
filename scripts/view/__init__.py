"""What people see on a terminal: tables, the live line, questions."""
