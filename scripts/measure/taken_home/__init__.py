"""The parts of `exports.py`, each a process of its own: calls of exported operators, dispatch rules on unseen shapes,
and the fastest configuration beside the thriftiest."""
