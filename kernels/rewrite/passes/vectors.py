"""Neighbouring elements are read and written together, as one access of up to 16 bytes, and how caches treat them.

A thread that computes one element from its global coordinate computes several neighbours instead. What does not fill a
vector, at the end or where an array begins at another address, goes element by element. Loads are marked of arrays that
the kernel never writes, stores of arrays that it never reads (CUDA C++ Programming Guide, "Read-Only Data Cache Load
Function" and "Load Functions Using Cache Hints").
"""

from __future__ import annotations

from collections.abc import Callable

from tunesmith.kernels.reader.syntax import Node
from tunesmith.kernels.rewrite.edits import Edit, Span, replace, span, switched, wrap
from tunesmith.kernels.rewrite.facts import Access
from tunesmith.kernels.rewrite.forms import ONE
from tunesmith.kernels.rewrite.passes.record import Change, Layer, Pass, PlacedArray, Refused, Subject

WIDEST = "No access has more than 16 bytes."


def _marked(subject: Subject) -> list[Access] | Refused:
    facts, found = subject.facts, list[Access]()
    for root in facts.arrays:
        own = facts.of(root)
        if not own or root in facts.escaping or not subject.dtype(root):
            continue
        if not any(one.written for one in own):
            found.extend(one for one in own if one.node.what in ("index", "deref") and not one.node.fixed)
        elif not any(one.read for one in own) and all(one.assignment is not None for one in own):
            found.extend(own)
    return found or Refused("no array is only read, or only written, in a way that can be marked for the caches")


def value_of(subject: Subject, node: Node) -> Span:
    """The text of the value that an assignment gives."""
    target = node.kids[0]
    return Span(subject.facts.syntax.code.index(b"=", target.end) + 1, node.end)


def moved(subject: Subject, access: Access, here: str) -> Edit:
    """The edit that gives an access another place, in C, which is not in global memory."""
    node = access.assignment
    if subject.hint(access.root, stored=True) != "0" and node is not None:
        return replace(node, f"{here} = ", value_of(subject, node))
    return replace(access.node, here)


def _hint(subject: Subject, found: list[Access]) -> Change:
    read, written = [one for one in found if one.read], [one for one in found if one.written]
    load, store = subject.name("LOAD"), subject.name("STORE")
    loads, stores = subject.name("LOADS"), subject.name("STORES")
    made = Change(kit=("hints",))
    if read:
        doc = "how arrays that are only read are loaded; 1: through the read-only cache; 2: as data needed once"
        made.parameter(loads, (0, 1, 2), doc)
        made.edits += [wrap(one.node, f"{load}(&", ")") for one in read]
        both = f"tunesmith::load<{loads}>(__VA_ARGS__)", "(*(__VA_ARGS__))"
        made.header.append(switched(f"{loads} > 0", {f"{load}(...)": both}))
        made.loads = {one.root.name: loads for one in read}
    if written:
        doc = "how arrays that are only written are stored; 1: as data that is not needed again soon"
        made.parameter(stores, (0, 1), doc)
        for one in written:
            node = one.assignment
            assert node is not None
            made.edits.append(replace(node, f"{store}(&", span(one.node), ",", value_of(subject, node), ")"))
        both = f"tunesmith::store<{stores}>(to, __VA_ARGS__)", "(*(to) = __VA_ARGS__)"
        made.header.append(switched(f"{stores} > 0", {f"{store}(to, ...)": both}))
        made.stores = {one.root.name: stores for one in written}
    return made


CACHE_HINTS = Pass("cache_hints", _marked, _hint)


def _arrays(subject: Subject) -> list[PlacedArray] | Refused:
    if subject.unmovable:
        return Refused(f"elements are read one by one: {subject.unmovable}")
    if "x" not in subject.bounds:
        return Refused("elements are read one by one: there is no guard for the coordinate of a thread")
    found, why = list[PlacedArray](), "no array is read or written at the coordinate of a thread for certain"
    for root in subject.facts.arrays:
        own = subject.facts.of(root)
        made = placed(subject, own, "@x", lambda node: subject.facts.certain(node, subject.bounds))
        if made is not None and (subject.backend == "cuda" or "__global" in root.written):
            found.append(made)
    return found or Refused(f"elements are read one by one: {why}")


def placed(
    subject: Subject, own: list[Access], atom: str, is_certain: Callable[[Node], bool], ahead: Node | None = None
) -> PlacedArray | None:
    """The array of which all of `own` are accesses, where some for certain touch the element behind the place `atom`,
    and its first element is known ahead of a statement (None: at the beginning of the kernel's body)."""
    at = [one for one in own if one.index.times(atom) == ONE and one.node.what == "index" and not one.node.fixed]
    if not at or at[0].root in subject.facts.escaping or not subject.dtype(at[0].root):
        return None
    for rest in dict.fromkeys(one.index.without(atom) for one in at):
        mine = [one for one in at if one.index.without(atom) == rest]
        # Of an array that is written, an element in a register must be all that the thread touches.
        alone = len(mine) == len(own) or not any(one.written for one in own)
        decisive = [one for one in mine if one.written] or mine
        known = subject.written(rest, ahead) is not None and not any(one.atomic for one in own)
        if alone and known and any(is_certain(one.node) for one in decisive):
            return PlacedArray(mine[0].root, rest, mine)
    return None


def _vectors(subject: Subject, arrays: list[PlacedArray]) -> Change | Refused:
    name, index = subject.name("VEC"), subject.index_type
    element, assign = subject.name("ELEMENT"), subject.name("ELEMENT_IS")
    first, item, at, whole, limit, of = (
        subject.name(one) for one in ("first", "element", "element_at", "whole", "limit", "elements_of")
    )
    bounds = {axis: subject.written(bound) for axis, bound in subject.bounds.items()}
    if None in bounds.values():
        return Refused("elements are read one by one: the guard's bound is not known ahead of it")
    inside = [f"{subject.at(axis)} < {bound}" for axis, bound in bounds.items() if axis != "x"]
    cuda = subject.backend == "cuda"
    begins = {one.root: f"{one.root.name} + {subject.written(one.rest)}" for one in arrays}
    declared, read, written = list[str](), list[str](), list[str]()
    for one in arrays:
        kind, mine = one.root.element, f"{of}_{one.root.name}"
        place = f"{begins[one.root]}, {first}, {limit}, {whole});"
        declared.append(
            f"tunesmith::Elements<{kind}, {name}> {mine};" if cuda else f"TUNESMITH_ELEMENTS({kind}, {name}, {mine});"
        )
        if one.read:
            hint = f"tunesmith::fetch<{subject.hint(one.root)}>(" if cuda else f"TUNESMITH_FETCH({name}, "
            read.append(f"{hint}{mine}, {place}")
        if one.written:
            hint = f"tunesmith::put<{subject.hint(one.root, stored=True)}>(" if cuda else f"TUNESMITH_PUT({name}, "
            written.append(f"{hint}{mine}, {place}")
    pointers = ", ".join(begins.values())
    aligned = [f"TUNESMITH_ALIGNED({name}, {one})" for one in begins.values()]
    opens = [
        f"const {index} {first} = {subject.at('x')} * {name};",
        f"#if {name} > 1",
        f"const {subject.wide} {limit} = {' && '.join(inside) or 'true'} ? {bounds['x']} : 0;",
        f"const bool {whole} = {first} + {name} <= {limit} && "
        f"{f'tunesmith::aligned<{name}>({pointers})' if cuda else ' && '.join(aligned)};",
        *[*declared, *read, "#endif", "#pragma unroll"],
        f"for ({index} {item} = 0; {item} < {name}; ++{item}) {{ const {index} {at} = {first} + {item};",
    ]
    closes = ["}", f"#if {name} > 1", *written, "#endif"]
    layer = Layer(f"{name} > 1", "\n".join(opens), "\n".join(closes), "x", at, loops=True)
    made = Change(kit=("vectors",), layers=[layer], share={"x": name})
    for one in arrays:
        for access in one.accesses:
            node = access.assignment
            if subject.hint(one.root, stored=True) != "0" and node is not None:
                value = value_of(subject, node)
                made.edits.append(replace(node, f"{assign}({one.root.name}, (", value, "), ", span(node), ")"))
            else:
                made.edits.append(wrap(access.node, f"{element}({one.root.name}, ", ")"))
    macros = {
        f"{element}(array, ...)": (f"{of}_##array.at[{item}]", "(__VA_ARGS__)"),
        f"{assign}(array, value, ...)": (f"{of}_##array.at[{item}] = value", "__VA_ARGS__"),
    }
    made.header.append(switched(f"{name} > 1", macros))
    made.parameter(name, (1, 2, 4, 8, 16), "neighbouring elements that a thread reads and writes together")
    for size in sorted({f"{name} * sizeof({subject.dtype(one.root)})" for one in arrays}):
        made.constraints[f"{name} == 1 or {size} <= 16"] = WIDEST
    return made


VECTORS = Pass(
    "vectors",
    _arrays,
    _vectors,
    after=("block_size", "work_per_thread", "row_lanes", "cache_hints"),
    languages=("cuda", "opencl"),
)
