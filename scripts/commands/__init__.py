"""The commands, one file each: options and help. `tunesmith.cli.main` lists them and imports one when it is called."""
