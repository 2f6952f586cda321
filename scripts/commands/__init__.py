"""The commands, one file each. `tunesmith.cli.main` lists them and imports one when it is called."""
