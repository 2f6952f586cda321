"""Reads CUDA C++: the kernels of a source, their arguments, and what each does with them, as typed facts.

Owns the syntax tree and questions about it. It understands the text as written, not the result of its macros: code that
hides from it is an `Oddity`, and code with one is left alone. What to do with the facts is for `draft` and `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from tunesmith.hw.errors import TunesmithError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_BARRIERS = re.compile(r"\b(?:__syncthreads\w*|__syncwarp|__barrier_sync\w*)\b")
_WARP_WIDE = re.compile(r"\b__(?:shfl|ballot|any|all|match|reduce|activemask)\w*\b")
COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HIDING = re.compile(
    r"\b(?:threadIdx|blockIdx|blockDim|gridDim|return|__global__|__shared__|for)\b|\["
    r"|\b__(?:sync|shfl|ballot|any|all|match|reduce|activemask)"
    # What changes a variable, or gives its address away.
    r"|\+\+|--|(?<![=!<>])=(?!=)|(?:<<|>>)=|(?:^|[(,])\s*&"
)
_READING = ("__ldg", "__ldcs", "__ldca", "__ldcg")
_SWAPPING = frozenset({"swap", "exchange"})
"""Built-in functions that change their arguments."""

_ATTRIBUTES = re.compile(rb"\b__(?:cluster_dims|block_size|maxnreg)__\s*\((?:[^()]|\([^()]*\))*\)")
"""What the parser takes for the name of a variable."""
_NUMBER_WORDS = frozenset({"unsigned", "signed", "long", "short", "int", "char"})

OddKind = Literal[
    "syntax",
    "macro",
    "texture",
    "assembly",
    "dynamic parallelism",
    "cooperative groups",
    "early return",
    "pointer",
    "attribute",
    "shared memory",
]
Unusual = Literal["", "a pointer to pointers", "a pointer to arrays", "a reference", "a pointer to a function"]
"""What a parameter is that is neither a scalar nor a pointer to elements."""


class SourceError(TunesmithError):
    """A CUDA source cannot be read as a kernel to tune."""


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something for which a kernel is left as it is. why: a sentence for its author."""

    kind: OddKind
    why: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel's signature. c_type: of an element for a pointer, without qualifiers; default: the text
    of its default value."""

    name: str
    c_type: str
    pointer: bool
    const: bool = False
    restrict: bool = False
    unusual: Unusual = ""
    default: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """One place where a kernel touches what a pointer parameter points to. node: the whole `p[i]` or `*p`; root: the
    parameter; path: the expressions that are added to it, outermost pointer first; atomic: through an atomic call."""

    node: Node
    root: str
    path: tuple[Node, ...]
    read: bool
    written: bool
    atomic: bool = False


def text(node: Node) -> str:
    """The node's source text."""
    return (node.text or b"").decode()


def walk(node: Node) -> Iterator[Node]:
    """The node and all nodes below it, in the order of the source."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(node.children)


def bare(node: Node | None) -> Node | None:
    """The node without the parentheses and casts around it."""
    while node is not None and node.type in ("parenthesized_expression", "cast_expression", "condition_clause"):
        node = node.child_by_field_name("value") or (node.named_children[0] if node.named_children else None)
    return node


@lru_cache(maxsize=1)
def _parser() -> Parser:
    try:
        import tree_sitter_cuda
        from tree_sitter import Language, Parser
    except ImportError as error:
        raise SourceError(
            f"CUDA sources cannot be read here ({error}): install the parser with "
            "`pip install tree-sitter tree-sitter-cuda`."
        ) from error
    return Parser(Language(tree_sitter_cuda.language()))


class Kernel:
    """One `__global__` function with its body. code: the whole source; extern_c, templated: how it is declared."""

    def __init__(self, code: bytes, root: Node, function: Node) -> None:
        self.code, self.root, self.function = code, root, function
        declarator = _function_declarator(function)
        body = function.child_by_field_name("body")
        assert declarator is not None and body is not None
        self.declarator, self.body = declarator, body
        name = declarator.child_by_field_name("declarator")
        self.name_node = name
        self.name = "" if name is None else text(name)
        above = _ancestors(function)
        self.templated = any(node.type == "template_declaration" for node in above)
        self.extern_c = any(node.type == "linkage_specification" and '"C"' in text(node)[:20] for node in above)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Those of the signature, in their order."""
        return tuple(_parameter(one) for one in self.parameter_nodes)

    @property
    def parameter_nodes(self) -> list[Node]:
        inside = self.declarator.child_by_field_name("parameters")
        declared = ("parameter_declaration", "optional_parameter_declaration")
        return [
            one
            for one in (() if inside is None else inside.named_children)
            if one.type in declared and text(one) != "void"
        ]

    @property
    def unread_parameters(self) -> list[str]:
        """What stands among the parameters and is none that is understood, such as a pack or a directive."""
        inside = self.declarator.child_by_field_name("parameters")
        known = ("parameter_declaration", "optional_parameter_declaration", "comment", "(", ",", ")")
        return [text(one) for one in (() if inside is None else inside.children) if one.type not in known]

    @cached_property
    def start(self) -> int:
        """Where the function begins in the code, with the attributes that stand before it."""
        start = self.function.start_byte
        for found in reversed(list(_ATTRIBUTES.finditer(self.code, 0, start))):
            if self.code[found.end() : start].strip():
                break
            start = found.start()
        return start

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """Those that the parser does not know, such as `__cluster_dims__(2, 1, 1)`."""
        return tuple(one.decode() for one in _ATTRIBUTES.findall(self.code[self.start : self.body.start_byte]))

    @cached_property
    def functions(self) -> tuple[Node, ...]:
        """Bodies of the device functions that the kernel calls, directly or not."""
        known: dict[str, list[Node]] = {}
        for node in walk(self.root):
            if node.type == "function_definition" and node != self.function:
                declarator, body = _function_declarator(node), node.child_by_field_name("body")
                name = None if declarator is None else declarator.child_by_field_name("declarator")
                if name is not None and body is not None:
                    known.setdefault(text(name), []).append(body)
        found: list[Node] = []
        waiting, seen = [self.body], set[str]()
        while waiting:
            for node in walk(waiting.pop()):
                if node.type == "identifier" and (name_ := text(node)) in known and name_ not in seen:
                    seen.add(name_)
                    found += known[name_]
                    waiting += known[name_]
        return tuple(found)

    @cached_property
    def plain(self) -> str:
        """The text of the kernel's body and of the functions it calls, without comments."""
        return "\n".join(COMMENTS.sub(" ", text(node)) for node in (self.body, *self.functions))

    def reached(self, code: str) -> str:
        """What `code`, the source or a text with the same places, has of the kernel from its attributes on, of the
        functions that it calls, and of the macros that all of them use, without comments."""
        before, written = self.function.prev_sibling, code.encode()
        places = [(0 if before is None else before.end_byte, self.function.end_byte)]
        places += [(one.start_byte, one.end_byte) for one in self.functions]
        found = COMMENTS.sub(" ", "\n".join(written[start:end].decode() for start, end in places))
        macros = _macros(code)
        while used := sorted(_words(found) & macros.keys()):
            found += "\n".join(["", *(replacement for name in used for _, replacement in macros.pop(name))])
        return found

    @property
    def barriers(self) -> bool:
        return _BARRIERS.search(self.plain) is not None

    @property
    def warp_wide(self) -> bool:
        """Whether threads of a warp exchange values."""
        return _WARP_WIDE.search(self.plain) is not None

    @property
    def shared(self) -> bool:
        return "__shared__" in self.plain

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Variables that are nothing but a builtin, such as `const int tid = threadIdx.x`, by name."""
        found = {}
        for node in walk(self.body):
            if node.type == "init_declarator":
                name, value = node.child_by_field_name("declarator"), bare(node.child_by_field_name("value"))
                if name is not None and name.type == "identifier" and value is not None and _is_builtin(value):
                    found[text(name)] = text(value)
        changed = {text(node) for node in self.changed_names}
        repeated = {name for name in found if self._declared(name) != 1}
        return {name: value for name, value in found.items() if name not in changed | repeated}

    def _declared(self, name: str) -> int:
        return sum(text(node) == name for node in self.declared_names) + sum(
            one.name == name for one in self.parameters
        )

    def own(self, within: Node) -> set[str]:
        """The variables that are declared in a part of the body, and whose names no other has."""
        inside = [text(node) for node in declared(within)]
        return {name for name in inside if inside.count(name) == self._declared(name)}

    @cached_property
    def declared_names(self) -> list[Node]:
        """The names declared in the body, also by loops and as parameters of lambdas."""
        return declared(self.body)

    @cached_property
    def changed_names(self) -> list[Node]:
        """The variables that the body changes or gives away so that they may change, as often as it does."""
        return list(self.changes(self.body))

    @cached_property
    def changed(self) -> frozenset[str]:
        """The variables of `changed_names`."""
        return frozenset(text(node) for node in self.changed_names)

    @cached_property
    def constants(self) -> frozenset[str]:
        """The parameters, pointers apart, whose names mean the same everywhere in the body: nothing changes them, and
        no variable has the same name."""
        own = {one.name for one in self.parameters if not one.pointer}
        return frozenset(own - self.changed - {text(node) for node in self.declared_names})

    @cached_property
    def numbers(self) -> frozenset[str]:
        """The macros that stand for a number, or for a sum or product of numbers and of each other, everywhere."""
        macros, found = _macros(self.code.decode(errors="replace")), set[str]()
        taken = {one.name for one in self.parameters} | {text(node) for node in self.declared_names}

        def is_number(replacement: str) -> bool:
            words = set(re.findall(r"\b[A-Za-z_]\w*", replacement))
            return words <= found and re.fullmatch(r"[\w\s()+*/<>-]+", replacement) is not None

        while new := {
            name
            for name, made in macros.items()
            if name not in found | taken and all(not given and is_number(replacement) for given, replacement in made)
        }:
            found |= new
        return frozenset(found)

    @cached_property
    def keeps_to_itself(self) -> bool:
        """Whether no function that the kernel calls changes anything but its own variables and its arguments."""
        return all(
            {text(one) for one in self.changes(body)} <= {text(one) for one in declared(body.parent or body)}
            for body in self.functions
        )

    def changes(self, within: Node) -> Iterator[Node]:
        """The variables that `within` assigns to, as a whole or a part of them, or counts; and those whose address it
        takes, or that it gives another name, to a method of theirs, or to a function that may change them. What
        pointer parameters point to does not count: that is for `accesses`."""
        for node in walk(within):
            if node.type in ("assignment_expression", "update_expression"):
                yield from self._roots(_target(node))
            elif node.type == "pointer_expression" and text(node).startswith("&"):
                yield from self._roots(node.child_by_field_name("argument"))
            elif node.type in ("init_declarator", "for_range_loop"):
                declarator = node.child_by_field_name("declarator")
                if declarator is not None and declarator.type == "reference_declarator":
                    yield from self._roots(node.child_by_field_name("value") or node.child_by_field_name("right"))
            elif node.type == "type_identifier" and self._declared(text(node)):
                # `int& m(n)` reads like the declaration of a function.
                yield node
            elif node.type == "call_expression":
                called, given = node.child_by_field_name("function"), node.child_by_field_name("arguments")
                if called is not None and called.type == "field_expression":
                    yield from self._roots(called)
                if called is not None and called.type == "identifier" and text(called) in self._acting:
                    yield called
                taken = self._references(node)
                for at, one in enumerate(given.named_children if given is not None else ()):
                    if at in taken:
                        yield from self._roots(one)

    @cached_property
    def _acting(self) -> set[str]:
        """The body's variables that may change something when they are called, as lambdas that assign to variables not
        their own."""
        found = {text(name) for name in declared(self.body)}
        for node in walk(self.body):
            value = node.child_by_field_name("value") if node.type == "init_declarator" else None
            if value is not None and value.type == "lambda_expression":
                own = {text(name) for name in declared(value)}
                targets = (one for node in walk(value) for one in self._roots(_target(node)))
                outer = {text(one) for one in targets} - own
                if not outer:
                    found -= {text(name) for name in named_by(node)}
        return found

    def _roots(self, node: Node | None) -> Iterator[Node]:
        """The variables of which an expression is a part."""
        node = bare(node)
        if node is None:
            return
        if node.type in ("subscript_expression", "field_expression", "pointer_expression"):
            inner = bare(node.child_by_field_name("argument"))
            if inner is None or self._based(inner, self._pointers) is None:
                yield from (one for one in self._roots(inner) if text(one) not in self._pointers)
        elif node.type == "identifier":
            yield node
        else:
            for one in node.named_children:
                yield from self._roots(one)

    def builtin(self, node: Node | None) -> str:
        """`threadIdx.x` and the like where the node is that or an alias of it, behind casts; else empty."""
        node = bare(node)
        if node is None:
            return ""
        if _is_builtin(node):
            return text(node)
        return self.aliases.get(text(node), "") if node.type == "identifier" else ""

    def builtin_uses(self) -> Iterator[Node]:
        """Where the body or a function that it calls uses a builtin or an alias; declarations of aliases are none. A
        builtin that is not followed by .x, .y or .z comes as the bare name."""
        for body in (self.body, *self.functions):
            for node in walk(body):
                if node.type == "identifier":
                    name, parent = text(node), node.parent
                    if name in BUILTINS:
                        whole = parent if parent is not None and _is_builtin(parent) else node
                        if not self._declares_alias(whole):
                            yield whole
                    elif body == self.body and name in self.aliases and not _is_declared(node):
                        yield node

    def _declares_alias(self, node: Node) -> bool:
        above: Node | None = node.parent
        while above is not None and above.type in ("cast_expression", "parenthesized_expression"):
            above = above.parent
        if above is None or above.type != "init_declarator":
            return False
        name = above.child_by_field_name("declarator")
        return name is not None and text(name) in self.aliases

    @cached_property
    def _pointers(self) -> dict[str, tuple[str, tuple[Node, ...]]]:
        """Pointer parameters and the local pointers made from them: the parameter, and the offset added to it."""
        return dict(self._made_pointers)

    @cached_property
    def _made_pointers(self) -> list[tuple[str, tuple[str, tuple[Node, ...]]]]:
        found: dict[str, tuple[str, tuple[Node, ...]]] = {
            one.name: (one.name, ()) for one in self.parameters if one.pointer
        }
        made = list(found.items())
        for node in walk(self.body):
            if node.type == "init_declarator":
                declarator, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
                if declarator is not None and declarator.type == "pointer_declarator" and value is not None:
                    names = [one for one in walk(declarator) if one.type == "identifier"]
                    based = self._based(value, found)
                    if based is not None and len(names) == 1:
                        found[text(names[0])] = based
                        made.append((text(names[0]), based))
        return made

    def _based(self, node: Node, known: dict[str, tuple[str, tuple[Node, ...]]]) -> tuple[str, tuple[Node, ...]] | None:
        """What pointer an expression is, if it is one of `known` with something added to it."""
        node = bare(node) or node
        if node.type == "identifier":
            return known.get(text(node))
        if node.type == "pointer_expression" and text(node).startswith("&"):
            inner = bare(node.child_by_field_name("argument"))
            if inner is not None and inner.type == "subscript_expression":
                base, index = inner.child_by_field_name("argument"), _index(inner)
                if base is not None and index is not None and (found := self._based(base, known)) is not None:
                    return found[0], (*found[1], index)
        if node.type == "binary_expression" and _operator(node) == "+":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            for pointer, added in ((left, right), (right, left)):
                if pointer is not None and added is not None and (found := self._based(pointer, known)) is not None:
                    return found[0], (*found[1], added)
        return None

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """Where the body reads or writes what its pointer parameters point to."""
        return self._scan[0]

    @cached_property
    def escaping(self) -> frozenset[str]:
        """Pointer parameters that the body uses in another way than to read or write through them, such as passing
        them to a function: what happens to their data is not known."""
        return self._scan[1]

    @cached_property
    def _volatile(self) -> set[str]:
        """The pointers to volatile data."""
        nodes = [*self.parameter_nodes, *(node for node in walk(self.body) if node.type == "declaration")]
        marked = (one for one in nodes if re.search(r"\bvolatile\b", text(one).split("=")[0]))
        return {text(name) for one in marked for name in named_by(one)}

    def writes(self, name: str) -> bool:
        """Whether the kernel writes, or may write, the array into which the name is a pointer; False for any other."""
        root = self._pointers[name][0] if name in self._pointers else ""
        if any(one.name == root and one.const for one in self.parameters):
            return False
        return root in self.escaping or any(one.written and one.root == root for one in self.accesses)

    def escapes(self, name: str) -> bool:
        """Whether the name is that of a pointer into an array of `escaping`."""
        return name in self._pointers and self._pointers[name][0] in self.escaping

    @cached_property
    def _scan(self) -> tuple[tuple[Access, ...], frozenset[str]]:
        accesses: list[Access] = []
        # Where a name has several declarations, which of them is meant is not followed; what is volatile is read and
        # written as often as the kernel says.
        several = {name for name, _ in self._made_pointers if self._declared(name) != 1}
        escaping = {root for name, (root, _) in self._made_pointers if name in several | self._volatile}
        for node in walk(self.body):
            if node.type == "type_identifier" and text(node) in self._pointers:
                # `float* q(p)` reads like the declaration of a function.
                escaping.add(self._pointers[text(node)][0])
            if node.type != "identifier" or text(node) not in self._pointers or _is_declared(node):
                continue
            root, path = self._pointers[text(node)]
            found = self._access(node, root, path)
            if found is None:
                continue
            if isinstance(found, str):
                escaping.add(found)
            else:
                accesses.append(found)
        return tuple(accesses), frozenset(escaping)

    def _access(self, node: Node, root: str, path: tuple[Node, ...]) -> Access | str | None:
        """The access through the pointer `node`; None where it only makes another pointer, the parameter's name where
        it goes elsewhere."""
        at: Node = node
        while True:
            above = at.parent
            if above is None:
                return root
            if above.type in ("parenthesized_expression", "cast_expression"):
                if above.type == "cast_expression":
                    # A number, or elements of another type: their places are not the parameter's any more.
                    return root
                at = above
            elif above.type == "binary_expression" and _operator(above) == "+":
                other = above.child_by_field_name("right" if above.child_by_field_name("left") == at else "left")
                if other is not None:
                    path = (*path, other)
                at = above
            elif above.type == "subscript_expression" and above.child_by_field_name("argument") == at:
                index = _index(above)
                return root if index is None else self._used(above, root, (*path, index))
            elif above.type == "pointer_expression" and text(above).startswith("*"):
                return self._used(above, root, path)
            elif above.type == "argument_list" and (call := above.parent) is not None:
                called = text(call.child_by_field_name("function") or call)
                if called in _READING:
                    return Access(call, root, path, True, False)
                if called.startswith("atomic") and above.named_children[0] == at:
                    return Access(call, root, path, True, True, True)
                return root
            elif above.type == "init_declarator":
                return None if self._makes_pointer(above) else root
            else:
                return root

    def _used(self, node: Node, root: str, path: tuple[Node, ...]) -> Access | str | None:
        at, above = node, node.parent
        while above is not None and above.type in ("parenthesized_expression", "field_expression"):
            at, above = above, above.parent
        if above is None:
            return root
        if above.type == "assignment_expression" and above.child_by_field_name("left") == at:
            reads = _operator(above) != "="
            return Access(node, root, path, reads, True)
        if above.type == "update_expression":
            return Access(node, root, path, True, True)
        declarator = above.child_by_field_name("declarator") if above.type == "init_declarator" else None
        if declarator is not None and declarator.type == "reference_declarator":
            # Another name for the element: what happens to it by that name is not followed.
            return root
        if above.type == "argument_list" and above.parent is not None and self._references(above.parent):
            return root
        if above.type == "pointer_expression" and text(above).startswith("&"):
            outer = above.parent
            call = None if outer is None else outer.parent
            if outer is not None and outer.type == "argument_list" and call is not None:
                called = text(call.child_by_field_name("function") or call)
                if called.startswith("atomic"):
                    return Access(node, root, path, True, True, True)
                if called in _READING:
                    return Access(node, root, path, True, False)
            if outer is not None and outer.type == "init_declarator" and self._makes_pointer(outer):
                return None
            return root
        return Access(node, root, path, True, False)

    def _makes_pointer(self, declarator: Node) -> bool:
        """Whether an `init_declarator` gives a pointer that is followed by its name."""
        names = [text(one) for one in named_by(declarator)]
        inner = declarator.child_by_field_name("declarator")
        pointer = inner is not None and inner.type == "pointer_declarator"
        return pointer and len(names) == 1 and names[0] in self._pointers

    def _references(self, call: Node) -> frozenset[int]:
        """The numbers of a call's arguments that a function, a lambda or a method of that name may change, as the
        source has one with a reference there that is not const."""
        called = call.child_by_field_name("function")
        name = "" if called is None else re.split(r"::|\.|->", text(called).split("<")[0])[-1].strip()
        return self._changing.get(name, frozenset(range(2)) if name in _SWAPPING else frozenset())

    @cached_property
    def _changing(self) -> dict[str, frozenset[int]]:
        """The functions of the source that take references, by name, and the numbers of these parameters."""
        found: dict[str, frozenset[int]] = {}
        for node in walk(self.root):
            name: Node | None = None
            if node.type == "function_declarator":
                name = node.child_by_field_name("declarator")
            elif node.type == "lambda_expression" and node.parent is not None:
                name = node.parent.child_by_field_name("declarator")
            within = node.child_by_field_name("declarator") if node.type == "lambda_expression" else node
            given = None if within is None else within.child_by_field_name("parameters")
            if name is None or within is None:
                continue
            if given is None:
                given = next((one for one in within.named_children if one.type == "parameter_list"), None)
            taken = {
                at
                for at, one in enumerate(given.named_children if given is not None else ())
                if "&" in text(one) and not re.search(r"\bconst\b", text(one))
            }
            if taken:
                found[text(name)] = found.get(text(name), frozenset()) | taken
        return found

    @cached_property
    def oddities(self) -> tuple[Oddity, ...]:
        """Why the kernel is left as it is; empty for code that rules may rewrite."""
        found = []
        if self.function.has_error:
            found.append(Oddity("syntax", "the parser does not understand the kernel's code; a macro may hide it"))
        found += [Oddity("macro", f"the macro {name} hides what the kernel does") for name in self._hiding_macros()]
        words = COMMENTS.sub(" ", self.code.decode(errors="replace"))
        if re.search(r"\btexture\s*<|\bcuda(?:Texture|Surface)Object_t\b|\b(?:tex|surf)[123]D\w*\s*[<(]", words):
            found.append(Oddity("texture", "it reads or writes textures"))
        if re.search(r"\b(?:asm|__asm__|__asm)\b", words):
            found.append(Oddity("assembly", "it has inline assembly"))
        if "<<<" in self.plain:
            found.append(Oddity("dynamic parallelism", "it launches kernels"))
        if re.search(r"\bcooperative_groups\b", words):
            found.append(Oddity("cooperative groups", "it uses cooperative groups"))
        used = _words(self.plain)
        for node in self.root.named_children:
            if (
                node.type == "declaration"
                and "__shared__" in text(node)
                and used & {text(one) for one in named_by(node)}
            ):
                found.append(Oddity("shared memory", "its shared memory is declared outside of it"))
        if self.barriers and any(node.type == "return_statement" for node in walk(self.body)):
            found.append(Oddity("early return", "threads may return while others wait at a barrier"))
        if self.attributes:
            found.append(Oddity("attribute", f"it has {self.attributes[0]}, which the rules do not know"))
        return tuple(found)

    def _hiding_macros(self) -> list[str]:
        """The macros that the kernel and its functions use and of which any, or a macro that it uses in turn, hides
        something."""
        macros = _macros(self.code.decode(errors="replace"))
        arrays = {one.name for one in self.parameters if one.pointer}

        def hides(name: str, seen: frozenset[str]) -> bool:
            for given, replacement in macros[name]:
                words = _words(replacement) - given
                if _HIDING.search(replacement) or words & (arrays | _SWAPPING | self._changing.keys()):
                    return True
                if any(hides(one, seen | {one}) for one in words & macros.keys() - seen):
                    return True
            return False

        used = _words("\\n".join([COMMENTS.sub(" ", text(self.function)), self.plain]))
        return [name for name in macros if name in used and hides(name, frozenset({name}))]


class Source:
    """A CUDA source. kernels: its `__global__` functions with a body, in their order."""

    def __init__(self, code: str) -> None:
        self.code = code.encode()
        read = _ATTRIBUTES.sub(lambda found: re.sub(rb"[^\n]", b" ", found[0]), self.code)
        self.root = _parser().parse(read).root_node
        self.kernels = tuple(
            Kernel(self.code, self.root, node)
            for node in walk(self.root)
            if node.type == "function_definition" and _is_kernel(node)
        )

    def kernel(self, name: str | None, where: str, option: str = "--entry") -> Kernel:
        """The kernel `name`, or the only one. Raises `SourceError` that names `where` and `option`."""
        names = list(dict.fromkeys(one.name for one in self.kernels))
        if not names:
            raise SourceError(
                f"{where}: there is no kernel, that is no function `__global__ void NAME(...)` with its body; if a "
                "macro makes it, or it takes a pack of parameters, write that out."
            )
        if name is None:
            if len(names) > 1:
                raise SourceError(
                    f"{where}: there are {len(names)} kernels: choose one of {', '.join(names)} with {option}."
                )
            name = names[0]
        found = [one for one in self.kernels if one.name == name]
        if not found:
            raise SourceError(f"{where}: there is no kernel '{name}'; choose {option} from {', '.join(names)}.")
        if len(found) > 1:
            raise SourceError(f"{where}: there are {len(found)} kernels '{name}'; keep one of them in the file.")
        return found[0]


def _ancestors(node: Node) -> list[Node]:
    found, above = [], node.parent
    while above is not None:
        found.append(above)
        above = above.parent
    return found


def _function_declarator(function: Node) -> Node | None:
    at = function.child_by_field_name("declarator")
    while at is not None and at.type != "function_declarator":
        at = at.child_by_field_name("declarator")
    return at


def _is_kernel(function: Node) -> bool:
    body = function.child_by_field_name("body")
    return (
        body is not None
        and _function_declarator(function) is not None
        and any(text(child) == "__global__" for child in function.children)
    )


def _parameter(node: Node) -> Parameter:
    declarator = node.child_by_field_name("declarator")
    kind = node.child_by_field_name("type")
    default = node.child_by_field_name("default_value")
    restrict = False
    name, levels = "", list[str]()
    if declarator is not None:
        levels = [one.type for one in walk(declarator)]
        restrict = re.search(r"\b(?:__restrict__|__restrict)\b", text(declarator)) is not None
        name = next((text(one) for one in walk(declarator) if one.type == "identifier"), "")
    # The parser counts a qualifier between the words of a type, as in `unsigned const`, to the type.
    qualifiers = [*node.children, *(() if kind is None else kind.children)]
    const = any(one.type == "type_qualifier" and text(one) == "const" for one in qualifiers)
    return Parameter(
        name,
        "" if kind is None else _type_name(text(kind)),
        "pointer_declarator" in levels or "array_declarator" in levels,
        const,
        restrict,
        _unusual(levels),
        "" if default is None else text(default),
    )


def _unusual(levels: list[str]) -> Unusual:
    """What the nodes of a declarator make a parameter, where that is neither a scalar nor a pointer to elements."""
    pointers, arrays = levels.count("pointer_declarator"), levels.count("array_declarator")
    if "function_declarator" in levels:
        return "a pointer to a function"
    if "reference_declarator" in levels:
        return "a reference"
    if pointers + arrays < 2:
        return ""
    return "a pointer to arrays" if pointers == 0 or "parenthesized_declarator" in levels else "a pointer to pointers"


def _type_name(written: str) -> str:
    """A type without qualifiers, and where it is C's own by its usual name, as `unsigned long` for `long unsigned int
    const`."""
    words = [word for word in written.split() if word not in ("const", "volatile")]
    if not words or not set(words) <= _NUMBER_WORDS or words in (["char"], ["unsigned"]):
        return re.sub(r"^(?:::)?(?:cuda::)?std::(?=\w+_t$)", "", " ".join(words))
    sign = "unsigned " if "unsigned" in words else ""
    if "char" in words:
        return f"{sign or 'signed '}char"
    return sign + ("short" if "short" in words else " ".join(["long"] * words.count("long")) or "int")


def _is_builtin(node: Node) -> bool:
    if node.type != "field_expression":
        return False
    argument = node.child_by_field_name("argument")
    return argument is not None and text(argument) in BUILTINS


def _is_declared(node: Node) -> bool:
    """Whether an identifier is the name that a declaration gives."""
    at = node
    above = node.parent
    while above is not None and above.type in ("pointer_declarator", "array_declarator", "reference_declarator"):
        at = above
        above = at.parent
    if above is None:
        return False
    return above.type in ("init_declarator", "declaration", "parameter_declaration") and at in (
        above.children_by_field_name("declarator")
    )


def _index(subscript: Node) -> Node | None:
    """The only index of a subscript."""
    inside = subscript.child_by_field_name("indices")
    children = [] if inside is None else inside.named_children
    return children[0] if len(children) == 1 else None


def _target(node: Node) -> Node | None:
    """What an assignment assigns to, or a count counts; None for any other node."""
    if node.type not in ("assignment_expression", "update_expression"):
        return None
    return node.child_by_field_name("left") or node.child_by_field_name("argument")


def declared(within: Node) -> list[Node]:
    """The names in all declarations of a part of a source."""
    return [name for node in walk(within) if node.type != "init_declarator" for name in named_by(node)]


def named_by(node: Node) -> Iterator[Node]:
    """The names that a declaration declares, or one of its declarators; none for any other node."""
    if node.type in ("declaration", "parameter_declaration", "for_range_loop", "init_declarator"):
        for one in node.children_by_field_name("declarator"):
            yield from _declared_in(one)


def _declared_in(declarator: Node) -> Iterator[Node]:
    if declarator.type == "identifier":
        yield declarator
    others = [declarator.child_by_field_name(one) for one in ("value", "size", "parameters")]
    for one in declarator.named_children:
        if one not in others:
            yield from _declared_in(one)


def _operator(node: Node) -> str:
    operator = node.child_by_field_name("operator")
    return "" if operator is None else text(operator)


def _macros(code: str) -> dict[str, list[tuple[set[str], str]]]:
    """The macros that a source defines: the parameters and the replacement of each definition."""
    joined = re.sub(r"\\[ \t]*\n", " ", COMMENTS.sub(" ", code))
    pattern = r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)(?:\(([^)]*)\))?(.*)$"
    found: dict[str, list[tuple[set[str], str]]] = {}
    for name, given, replacement in re.findall(pattern, joined, re.MULTILINE):
        found.setdefault(name, []).append((_words(given), replacement))
    return found


def _words(code: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", code))


operator = _operator
"""The operator of a binary or assignment expression."""
index_of = _index
