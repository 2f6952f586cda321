"""Neighbouring elements are read and written together, as one access of up to 16 bytes, and how caches treat them.

A thread that computes one element from its global coordinate computes several neighbours instead. What does not fill a
vector, at the end or where an array begins at another address, goes element by element. Loads are marked of arrays that
the kernel never writes, stores of arrays that it never reads (CUDA C++ Programming Guide, "Read-Only Data Cache Load
Function" and "Load Functions Using Cache Hints").
"""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith.kernels.reader.syntax import Node, Symbol
from tunesmith.kernels.rewrite.facts import Access
from tunesmith.kernels.rewrite.forms import ONE
from tunesmith.kernels.rewrite.passes.record import (
    Change,
    Edit,
    Layer,
    Pass,
    PlacedArray,
    Plan,
    Refused,
    Span,
    Subject,
    replace,
    span,
    wrap,
)
from tunesmith.kernels.spec.template import Constraint, Parameter


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
            edits.append(replace(node, f"{store}(&", span(one.node), ",", value_of(subject, node), ")"))
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


def _arrays(subject: Subject) -> list[PlacedArray] | Refused:
    if subject.unmovable:
        return Refused(f"elements are read one by one: {subject.unmovable}")
    if "x" not in subject.bounds:
        return Refused("elements are read one by one: there is no guard for the coordinate of a thread")
    found, why = list[PlacedArray](), "no array is read or written at the coordinate of a thread for certain"
    for root in subject.facts.arrays:
        made = _array(subject, root)
        if made is not None and (subject.backend == "cuda" or "__global" in root.written):
            found.append(made)
    return found or Refused(f"elements are read one by one: {why}")


def _array(subject: Subject, root: Symbol) -> PlacedArray | None:
    facts, plain = subject.facts, Plan(subject)
    own = facts.of(root)
    at = [one for one in own if one.index.times("@x") == ONE and one.node.what == "index" and not one.node.fixed]
    if not own or root in facts.escaping or not subject.dtype(root) or any(one.atomic for one in own):
        return None
    for rest in dict.fromkeys(one.index.without("@x") for one in at):
        mine = [one for one in at if one.index.without("@x") == rest]
        written = [one for one in mine if one.written]
        # Of an array that is written, an element in a register must be all that the thread touches.
        if any(one.written for one in own) and len(mine) != len(own):
            continue
        known = plain.written(rest) is not None
        if known and any(facts.certain(one.node, subject.bounds) for one in written or mine):
            return PlacedArray(root, rest, mine)
    return None


def _vectors(subject: Subject, arrays: list[PlacedArray], plan: Plan) -> Change | Refused:
    name, index = subject.name("VEC"), subject.index_type
    element, assign = subject.name("ELEMENT"), subject.name("ELEMENT_IS")
    first, item, at, whole, limit, of = (
        subject.name(one) for one in ("first", "element", "element_at", "whole", "limit", "elements_of")
    )
    bounds = {axis: plan.written(bound) for axis, bound in subject.bounds.items()}
    if None in bounds.values():
        return Refused("elements are read one by one: the guard's bound is not known ahead of it")
    inside = [f"{plan.at[axis]} < {bound}" for axis, bound in bounds.items() if axis != "x"]
    cuda = subject.backend == "cuda"
    begins = {one.root: f"{one.root.name} + {plan.written(one.rest)}" for one in arrays}
    declared, read, written = list[str](), list[str](), list[str]()
    for one in arrays:
        kind, mine = one.root.element, f"{of}_{one.root.name}"
        place = f"{begins[one.root]}, {first}, {limit}, {whole});"
        declared.append(
            f"tunesmith::Elements<{kind}, {name}> {mine};" if cuda else f"TUNESMITH_ELEMENTS({kind}, {name}, {mine});"
        )
        if one.read:
            hint = f"tunesmith::fetch<{plan.hint(one.root)}>(" if cuda else f"TUNESMITH_FETCH({name}, "
            read.append(f"{hint}{mine}, {place}")
        if one.written:
            hint = f"tunesmith::put<{plan.hint(one.root, stored=True)}>(" if cuda else f"TUNESMITH_PUT({name}, "
            written.append(f"{hint}{mine}, {place}")
    pointers = ", ".join(begins.values())
    aligned = [f"TUNESMITH_ALIGNED({name}, {one})" for one in begins.values()]
    opens = [
        f"const {index} {first} = {plan.at['x']} * {name};",
        f"#if {name} > 1",
        f"const {subject.wide} {limit} = {' && '.join(inside) or 'true'} ? {bounds['x']} : 0;",
        f"const bool {whole} = {first} + {name} <= {limit} && "
        f"{f'tunesmith::aligned<{name}>({pointers})' if cuda else ' && '.join(aligned)};",
        *[*declared, *read, "#endif", "#pragma unroll"],
        f"for ({index} {item} = 0; {item} < {name}; ++{item}) {{ const {index} {at} = {first} + {item};",
    ]
    closes = ["}", f"#if {name} > 1", *written, "#endif"]
    edits = list[Edit]()
    for one in arrays:
        for access in one.accesses:
            node = assignment(access)
            if plan.hint(one.root, stored=True) != "0" and node is not None:
                value = value_of(subject, node)
                edits.append(replace(node, f"{assign}({one.root.name}, (", value, "), ", span(node), ")"))
            else:
                edits.append(wrap(access.node, f"{element}({one.root.name}, ", ")"))
    header = f"""#if {name} > 1
#define {element}(array, ...) {of}_##array.at[{item}]
#define {assign}(array, value, ...) {of}_##array.at[{item}] = value
#else
#define {element}(array, ...) (__VA_ARGS__)
#define {assign}(array, value, ...) __VA_ARGS__
#endif"""
    sizes = dict.fromkeys(f"{name} * sizeof({subject.dtype(one.root)}) <= 16" for one in arrays)
    because = "No access has more than 16 bytes."
    doc = "neighbouring elements that a thread reads and writes together"
    return Change(
        parameters=(Parameter(name=name, values=(1, 2, 4, 8, 16), doc=doc),),
        edits=tuple(edits),
        layers=(Layer(f"{name} > 1", "\n".join(opens), "\n".join(closes), "x", at, loops=True),),
        header=header,
        kit=("vectors",),
        constraints=tuple(Constraint(expression=f"{name} == 1 or {one}", because=because) for one in sorted(sizes)),
        share={"x": name},
    )


VECTORS = Pass(
    "vectors",
    _arrays,
    _vectors,
    after=("block_size", "work_per_thread", "row_lanes", "cache_hints"),
    languages=("cuda", "opencl"),
)
