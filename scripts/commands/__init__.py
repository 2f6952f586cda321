"""The commands, a file each; `tunesmith.cli.main` registers them."""
