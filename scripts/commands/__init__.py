"""The commands by subject. `tunesmith.cli.main` lists them and imports a module when a command of it is called."""
