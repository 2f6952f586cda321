"""Runs about runs: ablations of the stages, and whole spaces measured."""
