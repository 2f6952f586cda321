"""The passes: each changes a kernel in one way, which parameters turn on.

A pass is a record (`record.Pass`) in the list `template.RULES`, in the order in which a template lists parameters:

- `needs(subject)` looks at the facts (`subject.facts`), the launch and how threads share work (`subject.work`), and
  returns its findings, or raises `Refused` with a reason that names the code.
- `change(subject, found)` fills in a `Change`: parameters, whose first values leave the kernel as it came;
  edits of the source; layers around its body; lines before it; constraints; what becomes of the launch. By then the
  subject says coordinates, builtins, blocks and cache hints as the passes before (`after`) have made them.
- `excludes` names the passes with which it has no meaning together, each with the reason.

Edits (`edits.py`) replace a range of bytes by text and by spans of the source; a span has the edits of all other passes
in it, so that none has to know of another. Of edits of one place the first in the list is the outermost. What a node
says is asked of the facts, never of its text; a node that is `fixed` was written by a macro and cannot be edited. Code
of more than a line or two is a building block of `kit/rules.cuh`, which `Change.kit` names.
"""

from __future__ import annotations
