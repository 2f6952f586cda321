"""The record of a run: everything that was decided and measured, append-only, and its readers."""
