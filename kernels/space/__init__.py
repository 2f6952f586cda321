"""Which points of a template are feasible, and why the others are not.

Parameters, constraints and device limits become rules; rules become a listed space. Nothing is compiled or measured.
"""
