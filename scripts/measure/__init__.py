"""Programs that measure Tunesmith itself, run by hand. Not part of the installed package."""
