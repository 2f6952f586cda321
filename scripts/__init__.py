"""The command line, importable as `tunesmith.cli`. Heavy packages are imported by the command that needs them."""
