"""What is tuned: task, template, space, search, compile, check, timing, library.

The core is pure and runs anywhere; GPU libraries are imported where they are used, never at import time.
"""
