"""How caches treat what a kernel reads and writes: through the read-only cache, or as data that nobody needs again.

Loads are marked of arrays that the kernel never writes, stores of arrays that it never reads (CUDA C++ Programming
Guide, "Read-Only Data Cache Load Function" and "Load Functions Using Cache Hints").
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.rewrite.facts import Access
from tunesmith.kernels.rewrite.passes.record import Change, Edit, Pass, Plan, Refused, Span, Subject, span, wrap
from tunesmith.kernels.rewrite.syntax import Node
from tunesmith.kernels.spec.template import Parameter


@dataclass(frozen=True, slots=True)
class _Marked:
    loads: list[Access]
    stores: list[Access]


def _marked(subject: Subject) -> _Marked | Refused:
    facts, found = subject.facts, _Marked([], [])
    for root in facts.arrays:
        own = facts.of(root)
        if not own or root in facts.escaping or not subject.dtype(root):
            continue
        if not any(one.written for one in own):
            found.loads.extend(one for one in own if one.node.what in ("index", "deref") and not one.node.fixed)
        elif not any(one.read for one in own) and all(assignment(one) is not None for one in own):
            found.stores.extend(own)
    if found.loads or found.stores:
        return found
    return Refused("no array is only read, or only written, in a way that can be marked for the caches")


def assignment(access: Access) -> Node | None:
    """The statement that gives the element a value and does nothing else; None where it is another."""
    above = access.node.parent
    alone = above is not None and above.what == "assign" and above.op == "=" and above.kids[0] is access.node
    return above if alone and above is not None and above.statement is above and not above.fixed else None


def value_of(subject: Subject, node: Node) -> Span:
    """The text of the value that an assignment gives."""
    target = node.kids[0]
    return Span(subject.facts.syntax.code.index(b"=", target.end) + 1, node.end)


def _hint(subject: Subject, found: _Marked, plan: Plan) -> Change:
    load, store = subject.name("LOAD"), subject.name("STORE")
    loads, stores = subject.name("LOADS"), subject.name("STORES")
    edits, parameters, header = list[Edit](), list[Parameter](), list[str]()
    if found.loads:
        doc = "how arrays that are only read are loaded; 1: through the read-only cache; 2: as data needed once"
        parameters.append(Parameter(name=loads, values=(0, 1, 2), doc=doc))
        edits += [wrap(one.node, f"{load}(&", ")") for one in found.loads]
        header += [f"#if {loads} > 0", f"#define {load}(...) tunesmith::load<{loads}>(__VA_ARGS__)"]
        header += ["#else", f"#define {load}(...) (*(__VA_ARGS__))", "#endif"]
    if found.stores:
        doc = "how arrays that are only written are stored; 1: as data that nobody needs again soon"
        parameters.append(Parameter(name=stores, values=(0, 1), doc=doc))
        for one in found.stores:
            node = assignment(one)
            assert node is not None
            edits.append(Edit(node.start, node.end, (f"{store}(&", span(one.node), ",", value_of(subject, node), ")")))
        header += [f"#if {stores} > 0", f"#define {store}(to, ...) tunesmith::store<{stores}>(to, __VA_ARGS__)"]
        header += ["#else", f"#define {store}(to, ...) (*(to) = __VA_ARGS__)", "#endif"]
    return Change(
        parameters=tuple(parameters),
        edits=tuple(edits),
        header="\n".join(header),
        kit=("hints",),
        loads={one.root.name: loads for one in found.loads},
        stores={one.root.name: stores for one in found.stores},
    )


CACHE_HINTS = Pass("cache_hints", _marked, _hint)
