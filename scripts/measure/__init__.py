"""The laboratory: measurements of Tunesmith itself, run by hand. Not part of the installed package."""
