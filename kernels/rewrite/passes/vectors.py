"""Neighbouring elements are read and written together, as one access of up to 16 bytes, and how caches treat them.

A thread that computes one element from its global coordinate computes several neighbours instead. What does not fill a
vector, at the end or where an array begins at another address, goes element by element. Loads are marked of arrays that
the kernel never writes, stores of arrays that it never reads (CUDA C++ Programming Guide, "Read-Only Data Cache Load
Function" and "Load Functions Using Cache Hints").
"""

from __future__ import annotations

from tunesmith.kernels.reader.syntax import Node
from tunesmith.kernels.rewrite.edits import Edit, Span, replace, span, switched, wrap
from tunesmith.kernels.rewrite.facts import Access
from tunesmith.kernels.rewrite.passes.places import Place, places
from tunesmith.kernels.rewrite.passes.record import BOTH, Change, Layer, Pass, Subject, require, required

WIDEST = "No access has more than 16 bytes."


def _marked(subject: Subject) -> list[Access]:
    facts, found = subject.facts, list[Access]()
    for root in facts.arrays:
        own = facts.of(root)
        if not own or root in facts.escaping or not subject.dtype(root):
            continue
        if not any(one.written for one in own):
            found.extend(one for one in own if one.node.what in ("index", "deref") and not one.node.fixed)
        elif not any(one.read for one in own) and all(one.assignment is not None for one in own):
            found.extend(own)
    return required(found, "no array is only read, or only written, in a way that can be marked for the caches")


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


def _places(subject: Subject) -> list[Place]:
    require(not subject.unmovable, subject.unmovable)
    axes = subject.work.axes
    # Without any guard, a launch has to have the threads that it came with.
    exact = "x" in subject.axes and not any(one.guarded or one.strided or one.bound is not None for one in axes)
    require("x" in subject.bounds or exact, "the guard for the coordinate of a thread is not understood")
    found = list[Place]()
    for root in subject.facts.arrays:
        own = subject.facts.of(root)
        if own and (subject.backend == "cuda" or "__global" in root.written):
            found += places(subject, own, "@x", lambda node: subject.facts.certain(node, subject.bounds))
    return required(found, "no array is read or written at the coordinate of a thread for certain")


def _vectors(subject: Subject, found: list[Place]) -> Change:
    name, index = subject.name("VEC"), subject.index_type
    element, assign = subject.name("ELEMENT"), subject.name("ELEMENT_IS")
    words = ("first", "element", "element_at", "is_even", "apart", "whole", "limit", "elements_of", "begin_of")
    first, item, at, is_even, apart, whole, limit, of, begin = map(subject.name, words)
    bounds = {axis: subject.written(bound) for axis, bound in subject.bounds.items()}
    require(None not in bounds.values(), "the guard's bound is not known ahead of it")
    inside = [f"{subject.at(axis)} < {bound}" for axis, bound in bounds.items() if axis != "x"]
    cuda = subject.backend == "cuda"
    declared, read, written = list[str](), list[str](), list[str]()
    made = Change(kit=("vectors",), share={"x": name})
    for one in found:
        kind, mine, begins = one.root.element, f"{of}_{one.name}", f"{one.root.name} + {subject.written(one.rest)}"
        count = one.elements(name)
        if one.multiples:
            begins = f"{begin}_{one.name}"
            place = f"{one.root.name} + {subject.written(one.index, None, {'@x': 'i'})}"
            declared.append(f"const auto {begins} = [&](const {index} i) {{ return {place}; }};")
        place = f"{begins}, {first}, {apart}, {limit}, {whole});"
        declared.append(
            f"tunesmith::Elements<{kind}, {count}> {mine};" if cuda else f"TUNESMITH_ELEMENTS({kind}, {count}, {mine});"
        )
        if one.read:
            hints = f"tunesmith::fetch<{subject.hint(one.root)}, {one.record}>("
            read.append(f"{hints if cuda else f'TUNESMITH_FETCH({name}, {one.record}, '}{mine}, {place}")
        if one.written:
            hints = f"tunesmith::put<{subject.hint(one.root, stored=True)}, {one.record}>("
            written.append(f"{hints if cuda else f'TUNESMITH_PUT({name}, {one.record}, '}{mine}, {place}")
        made.constraints[f"{name} == 1 or {count} * sizeof({subject.dtype(one.root)}) <= 16"] = WIDEST
        for access in one.accesses:
            number = item if one.record == 1 else f"{one.elements(item)} + {one.number(access)}"
            node, here = access.assignment, f"{one.name}, {number}"
            if subject.hint(one.root, stored=True) != "0" and node is not None:
                value = value_of(subject, node)
                made.edits.append(replace(node, f"{assign}({here}, (", value, "), ", span(node), ")"))
            else:
                made.edits.append(wrap(access.node, f"{element}({here}, ", ")"))
    shares = [change.share["x"] for change in subject.changes.values() if change.share.get("x", "1") != "1"]
    every = f"{first} + ({subject.wide}){name} * {apart}"
    even = " && ".join(dict.fromkeys(test for one in found for test in one.even(subject, name)))
    # Where no vectors are, the elements of a thread are as many apart as there are threads, which stay neighbours.
    threads = " * ".join([subject.builtin("gridDim.x"), subject.builtin("blockDim.x"), *shares])
    opens = [
        f"#if {name} > 1",
        f"const bool {is_even} = {even};",
        f"const {index} {first} = {subject.at('x')} * ({is_even} ? {name} : 1);",
        f"const {index} {apart} = {is_even} ? 1 : {threads};",
        f"const {subject.wide} {limit} = {' && '.join(inside) or 'true'} ? {bounds.get('x', every)} : 0;",
        f"const bool {whole} = {is_even} && {first} + {name} <= {limit};",
        *[*declared, *read],
        "#else",
        f"const {index} {first} = {subject.at('x')}, {apart} = 1;",
        "#endif",
        "#pragma unroll",
        f"for ({index} {item} = 0; {item} < {name}; ++{item}) {{ const {index} {at} = {first} + {item} * {apart};",
    ]
    closes = ["}", f"#if {name} > 1", *written, "#endif"]
    made.layers.append(Layer(f"{name} > 1", "\n".join(opens), "\n".join(closes), "x", at, loops=True))
    macros = {
        f"{element}(array, number, ...)": (f"{of}_##array.at[number]", "(__VA_ARGS__)"),
        f"{assign}(array, number, value, ...)": (f"{of}_##array.at[number] = value", "__VA_ARGS__"),
    }
    made.header.append(switched(f"{name} > 1", macros))
    made.parameter(name, (1, 2, 4, 8, 16), "neighbouring elements that a thread reads and writes together")
    return made


VECTORS = Pass(
    "vectors",
    _places,
    _vectors,
    why="elements are read one by one: ",
    after=("block_size", "work_per_thread", "row_lanes", "cache_hints"),
    languages=BOTH,
)
