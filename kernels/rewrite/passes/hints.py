"""How caches treat what a kernel reads and writes: through the read-only cache, or as data that nobody needs again.

Loads are marked of arrays that the kernel never writes, stores of arrays that it never reads (CUDA C++ Programming
Guide, "Read-Only Data Cache Load Function" and "Load Functions Using Cache Hints"). Other rewrites ask here how they
read and write, so that their vectors carry the same hints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunesmith.kernels.rewrite.passes.rule import Applied, Edit, Skipped, Subject, rule
from tunesmith.kernels.rewrite.source import Access, operator
from tunesmith.kernels.spec.dtypes import C_TYPES, DTYPES
from tunesmith.kernels.spec.template import Parameter

if TYPE_CHECKING:
    from tree_sitter import Node

_HEADER = """\
#if {loads} > 0 || {stores} > 0
template <int BYTES> struct {piece};
template <> struct {piece}<1> {{ using type = unsigned char; }};
template <> struct {piece}<2> {{ using type = unsigned short; }};
template <> struct {piece}<4> {{ using type = unsigned int; }};
template <> struct {piece}<8> {{ using type = uint2; }};
template <> struct {piece}<16> {{ using type = uint4; }};
#endif
#if {loads} > 0
template <class V> __device__ __forceinline__ V {loaded}(const V* from) {{
    using P = typename {piece}<sizeof(V)>::type;
#if {loads} == 1
    P raw = __ldg(reinterpret_cast<const P*>(from));
#else
    P raw = __ldcs(reinterpret_cast<const P*>(from));
#endif
    return reinterpret_cast<V&>(raw);
}}
#define {load}(...) {loaded}(__VA_ARGS__)
#else
#define {load}(...) (*(__VA_ARGS__))
#endif
#if {stores} > 0
template <class V, class W> __device__ __forceinline__ void {stored}(V* to, const W& given) {{
    using P = typename {piece}<sizeof(V)>::type;
    V value = given;
    __stcs(reinterpret_cast<P*>(to), reinterpret_cast<P&>(value));
}}
#define {store}(to, ...) {stored}(to, __VA_ARGS__)
#else
#define {store}(to, ...) (*(to) = __VA_ARGS__)
#endif"""


@rule
def cache_hints(given: Subject) -> Applied | Skipped:
    """How read-only arrays are loaded and write-only arrays stored; 0 is as the kernel came."""
    reads, writes = _marked(given)
    if not reads and not writes:
        return Skipped("no array is only read, or only written, in a way that can be marked for the caches")
    names = {one: given.name(one) for one in ("piece", "loaded", "stored")}
    names |= {"load": given.name("LOAD"), "store": given.name("STORE")}
    names |= {"loads": given.name("LOADS"), "stores": given.name("STORES")}
    edits, parameters = list[Edit](), list[Parameter]()
    for one in reads:
        edits.append(Edit(one.node.start_byte, one.node.start_byte, f"{names['load']}(&"))
        edits.append(Edit(one.node.end_byte, one.node.end_byte, ")", closes=True))
    for one in writes:
        assignment = one.node.parent
        sign = None if assignment is None else assignment.child_by_field_name("operator")
        assert assignment is not None and sign is not None
        edits.append(Edit(one.node.start_byte, one.node.start_byte, f"{names['store']}(&"))
        edits.append(Edit(sign.start_byte, sign.end_byte, ","))
        edits.append(Edit(assignment.end_byte, assignment.end_byte, ")", closes=True))
    header = _HEADER.format(**names)
    if reads:
        doc = "how arrays that are only read are loaded; 1: through the read-only cache; 2: as data needed once"
        parameters.append(Parameter(name=names["loads"], values=(0, 1, 2), doc=doc))
    else:
        header = f"#define {names['loads']} 0\n{header}"
    if writes:
        doc = "how arrays that are only written are stored; 1: as data that nobody needs again soon"
        parameters.append(Parameter(name=names["stores"], values=(0, 1), doc=doc))
    else:
        header = f"#define {names['stores']} 0\n{header}"
    return Applied(tuple(parameters), tuple(edits), header)


def load(given: Subject, root: str, pointer: str) -> str:
    """An expression that reads what `pointer` points to, which is in the array `root`, with the hint that it has."""
    marked = any(one.root == root for one in _marked(given)[0])
    return f"{given.name('LOAD')}({pointer})" if marked else f"*({pointer})"


def store(given: Subject, root: str, pointer: str, value: str) -> str:
    """An expression that writes `value` to what `pointer` points to, which is in `root`, with the hint that it has."""
    marked = any(one.root == root for one in _marked(given)[1])
    return f"{given.name('STORE')}({pointer}, {value})" if marked else f"*({pointer}) = {value}"


def marked_loads(given: Subject) -> list[Access]:
    """The accesses that `LOAD` is put around."""
    return _marked(given)[0]


def _marked(given: Subject) -> tuple[list[Access], list[Access]]:
    """The loads and the stores that can be marked."""
    kernel, reads, writes = given.kernel, list[Access](), list[Access]()
    types = {one.name: one.c_type for one in kernel.parameters}
    for root in types:
        own = [one for one in kernel.accesses if one.root == root]
        if root in kernel.escaping or C_TYPES.get(types[root], types[root]) not in {*DTYPES, *given.types}:
            continue
        if own and not any(one.written for one in own):
            reads += [one for one in own if _plain(one.node)]
        elif own and not any(one.read for one in own) and all(_assigned(one.node) for one in own):
            writes += own
    return reads, writes


def _plain(node: Node) -> bool:
    """Whether it is `p[i]` or `*p`, and not its address."""
    above = node.parent
    addressed = above is not None and above.type == "pointer_expression" and (above.text or b"").startswith(b"&")
    return node.type in ("subscript_expression", "pointer_expression") and not addressed


def _assigned(node: Node) -> bool:
    """Whether it is the target of an assignment that is a statement."""
    above = node.parent
    return (
        _plain(node)
        and above is not None
        and above.type == "assignment_expression"
        and above.child_by_field_name("left") == node
        and operator(above) == "="
        and above.parent is not None
        and above.parent.type == "expression_statement"
    )
