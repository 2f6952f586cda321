"""Modules that exports take along as they are: they run without Tunesmith, and import nothing of it."""
