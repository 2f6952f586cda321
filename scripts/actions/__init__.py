"""What the commands do, once their options are read. Heavy packages are imported here, and not for --help."""
