"""Values that a thread carries from one round of a loop to the next, where threads share the rounds out.

A rewrite that gives a thread other rounds keeps sums, products and extremes, which do not ask for the order of their
parts, and changes all else: a count that is used, the element before, a place in an array of the thread's own. A
running extreme may scale sums by exponentials, as a softmax of one pass has it, and say where it was found.
"""

from __future__ import annotations

import re

from tunesmith.kernels.reader.syntax import LAMBDA, LEFT, LOOPS, NOTHING, Node, Symbol
from tunesmith.kernels.rewrite.facts import ENDS, Facts

_ASSIGNED = {"+=": "+", "-=": "+", "*=": "*", "/=": "*", "|=": "|", "&=": "&", "^=": "^"}
_CHAINS = {"+": "+", "-": "+", "*": "*", "|": "|", "&": "&", "^": "^", "||": "||", "&&": "&&"}
_EXTREME = re.compile(r"_*[hf]?(?:max|min)f?2?")
_EXPONENTIAL = re.compile(r"_*h?(?:native_|half_)?exp(?:2|10)?f?")
Key = tuple[object, ...]


def key(node: Node) -> Key:
    """The meaning of an expression, however it is spelt."""
    if node.what == "name" and node.symbol is not NOTHING:
        return ("name", node.symbol.name, node.symbol.place)
    return (node.what, node.op, node.value, *map(key, node.kids))


class Carried:
    """The values that a loop carries. within: the body in which it stands, of the kernel or of a function. states: what
    the loop changes that lives longer than a round and is a thread's own, with the assignments and calls that do."""

    def __init__(self, facts: Facts, loop: Node, within: Node) -> None:
        self.facts, self.loop, self.within, self.body = facts, loop, within, loop.kids[3]
        own = facts.declared_in(loop)
        found: dict[Symbol, list[tuple[Node, Node]]] = {}
        for name, by in facts.changes(self.body):
            symbol = name.symbol
            outer = not symbol.shared and not (symbol.what == "global" and symbol.pointer)
            if symbol in own or facts.counts_anew(symbol) or not outer:
                continue
            found.setdefault(symbol, []).append((name, by))
        self.states = {symbol: those for symbol, those in found.items() if not self._made_anew(symbol)}
        picked = {symbol: [self._picked(*one) for one in those] for symbol, those in self.states.items()}
        self.extremes = {symbol for symbol, texts in picked.items() if None not in texts}
        self.weights = set[Symbol]()
        for node in self.body.walk():
            if node.what == "variable" and node.kids:
                names = facts.names_in(node.kids[-1])
                if _calls(node.kids[-1], _EXPONENTIAL) and names & (self.extremes | self.weights):
                    self.weights.add(node.symbol)
                elif self._is_extreme(node.kids[-1]) and names & self.extremes:
                    self.extremes.add(node.symbol)

    @property
    def why(self) -> str:
        """Why results depend on which thread has which round, as a clause; empty where they do not."""
        facts = self.facts
        ends = [one for one in self.body.walk() if one.what in ENDS - {"continue"}]
        if any(not one.inside(LEFT if one.what == "break" else LAMBDA, self.loop) for one in ends):
            return "a loop may end before its last round"
        for symbol, those in self.states.items():
            kinds = {self.kind(*one) for one in those}
            if "" in kinds or len(kinds) > 1:
                return f"a loop changes {symbol.name} in a way that depends on the order of its rounds"
        followed = self.states.keys() | self.extremes | self.weights
        for node in self.body.walk():
            if node.what == "name" and node.symbol in followed and not self.fits(node):
                return f"a loop uses {node.op}, which depends on the rounds before"
        if facts.shared or facts.warp_wide:
            return ""
        for node in self.within.walk():
            if node.what == "name" and node.symbol in self.states and node.start >= self.loop.end:
                atomic = (above for above, _ in node.above() if above.what == "call" and above.op.startswith("atom"))
                if next(atomic, None) is None:
                    return f"each thread has a part of {node.op}, and they do not put the parts together"
        return ""

    def sums(self) -> dict[Symbol, str] | str:
        """How two parts `a` and `b` of each state become one, in C, where several threads may share the rounds; else
        why not, as a clause."""
        made, (_, test, step, _) = dict[Symbol, str](), self.loop.kids
        for symbol in self.states:
            how, kind = self._combined(symbol), symbol.type
            if not how or kind.what not in ("number", "float") or kind.size not in (1, 4, 8) or kind.reference:
                return f"a loop changes {symbol.name} in a way that depends on the order of its rounds"
            made[symbol] = how
        again = made.keys() | self.facts.declared_in(self.body) | self.facts.changed_in(self.body)
        if self.facts.names_in(test) & again or self.facts.names_in(step) & again:
            return "a loop changes its own length"
        early = next((x for x in self.body.walk() if x.what == "name" and x.symbol in made and not self.fits(x)), None)
        return f"a loop uses {early.op} before it is complete" if early is not None else made

    def _combined(self, symbol: Symbol) -> str:
        """How two parts of a state become one; empty where that is not known."""
        changes = [change for _, change in self.states[symbol]]
        kinds = {"+" if one.what == "count" else self.kind(one.kids[0], one) for one in changes}
        if kinds == {"+"} and not self.weights:
            plain = all(one.op != "=" or one.kids[1].what == "binary" for one in changes)
            return "a + b" if plain else ""
        values = {one.kids[1].value for one in changes if one.what == "assign" and one.op == "="}
        if len(values) == len(kinds) == 1 and kinds == set(map(repr, values)):
            # A flag: each part is what it was, or this.
            return f"a == ({self.facts.text(changes[0].kids[1])}) ? a : b"
        texts = {self._picked(one.kids[0], one) for one in changes} if kinds == {"pick"} else set()
        return texts.pop() or "" if len(texts) == 1 else ""

    def _made_anew(self, symbol: Symbol) -> bool:
        """Whether each round gives the variable a value before it uses it, and nothing uses the last one."""
        uses = self.facts.uses(symbol, self.within)
        inside = [one for one in uses if self.body.start <= one.start < self.body.end]
        after = [one for one in uses if one.start >= self.loop.end]
        if self.loop.inside(LOOPS | LAMBDA, self.within):
            return False
        first = self._overwrites(inside[0]) if inside else None
        always = first is not None and (first is self.body or first.parent is self.body)
        return always and (not after or self._overwrites(after[0]) is not None)

    def _overwrites(self, node: Node) -> Node | None:
        """The statement that gives a variable a value without a look at the one before; None where it is another."""
        change = node.parent
        if change is None or change.what != "assign" or change.op != "=" or change.kids[0] is not node:
            return None
        return None if node.symbol in self.facts.names_in(change.kids[1]) or change.statement is not change else change

    def _is_extreme(self, node: Node) -> bool:
        return node.what == "call" and _EXTREME.fullmatch(node.op) is not None

    def kind(self, node: Node, change: Node) -> str:
        """How a change combines the value so far with the round's own part; empty where it depends on the order."""
        if change.what == "count":
            return "+"
        if change.what == "call":
            # What a lambda or an object changes when it is called is not followed.
            called = change.op == "operator()" and change.kids[0].what == "name" and change.kids[1] is node
            return "" if called or change.kids[0].what == "member" else "call"
        if change.what != "assign":
            return ""
        target, value = change.kids
        if change.op != "=":
            how = "" if node.symbol in self.facts.names_in(value) else _ASSIGNED.get(change.op, "")
            return "+" if how == "*" and self._scales(value) else how
        branch, names = self._branch(change), self.facts.names_in
        there = branch is not None and node.symbol not in names(value) and names(branch.kids[0]) & self.extremes
        if there or self._picked(node, change) is not None:
            return "pick"
        if value.what == "literal":
            return repr(value.value)
        return self._folded(value, key(target))

    def _folded(self, value: Node, target: Key) -> str:
        """How a value puts the old one, `target`, together with another; empty where it does not."""
        if value.what == "cast" and value.kids:
            return self._folded(value.kids[-1], target)
        if value.what == "call":
            given = value.kids[1:]
            if len(given) == 1:
                # A conversion.
                return self._folded(given[0], target)
            return "call" if [key(one) for one in given].count(target) == 1 else ""
        sign = _CHAINS.get(value.op, "") if value.what == "binary" else ""
        terms = _terms(value, sign) if sign else []
        mine = [(one, plus) for one, plus in terms if any(key(part) == target for part in one.walk())]
        if len(mine) != 1 or not mine[0][1]:
            return ""
        factors = [one for one, _ in _terms(mine[0][0], "*")]
        others = [one for one in factors if key(one) != target]
        scaled = sign == "+" and all(self._scales(one) for one in others)
        return sign if len(factors) - len(others) == 1 and (not others or scaled) else ""

    def _scales(self, value: Node) -> bool:
        """Whether a factor is an exponential of a running extreme, or a number computed from it."""
        names = self.facts.names_in(value)
        return bool(names & self.weights) or (_calls(value, _EXPONENTIAL) and bool(names & self.extremes))

    def _picked(self, node: Node, change: Node) -> str | None:
        """Which of two values `a` and `b` a change keeps, in C, where that is the larger or the smaller of the variable
        `node` and another; empty where only the source says how, None for another change."""
        if change.what != "assign" or change.op != "=" or change.kids[0] is not node:
            return None
        value = change.kids[1]
        made = value.symbol.declared if value.what == "name" else None
        extreme = made.kids[-1] if made is not None and made.kids and self.body.holds(made) else value
        if self._is_extreme(extreme):
            said = f"{value.op}(a, b)" if extreme is value and len(value.kids) == 3 else ""
            return said if node.symbol in self.facts.names_in(extreme) else None
        branch = self._branch(change)
        choice, sides = (value, value.kids[1:]) if value.what == "choice" else (branch, [value, node])
        keys = [key(one) for one in sides]
        if choice is None or key(node) not in keys or _compared(test := choice.kids[0]) != {*keys}:
            return None
        around = next(one for one, _ in change.above() if one.what != "block")
        first = choice is value or (choice is around and choice.kids[1].holds(change))
        larger = (keys[0] == key(test.kids[0])) == (test.op[0] == ">")
        return ("a > b ? a : b" if larger else "a < b ? a : b") if first else ""

    def _branch(self, node: Node) -> Node | None:
        """The innermost `if` of the loop's body in which a node stands."""
        for above, _ in node.above():
            if above.what == "if" or above is self.loop:
                return above if above is not self.loop else None
        return None

    def fits(self, node: Node) -> bool:
        """Whether a use of a state, or of a value computed from an extreme, is part of a change that `kind` knows."""
        exponential, symbol = False, node.symbol
        for above, part in node.above():
            if above is self.loop:
                return False
            alone = above.statement is above
            if above.what == "index" and part is not above.kids[0]:
                return False
            if above.what == "call":
                exponential = exponential or _EXPONENTIAL.fullmatch(above.op) is not None
                if any(name is node for name, by in self.facts.changes(above) if by is above):
                    return alone
            elif above.what == "count":
                return alone
            elif above.what == "assign":
                target = next((one.symbol for one in self.facts.roots(above.kids[0])), None)
                scales = symbol in self.weights or (
                    symbol in self.extremes and (exponential or target in self.extremes)
                )
                return alone and (part is above.kids[0] or target is symbol or (scales and target in self.states))
            elif above.what == "variable":
                return above.symbol in self.extremes | self.weights
            elif above.what == "if" and part is above.kids[0]:
                return symbol in self.extremes and self._only_changes(above)
        return False

    def _only_changes(self, branch: Node) -> bool:
        """Whether all that an `if` does is to change states."""
        inside = list(branch.walk())
        calls = any(one.what == "call" and one.statement is one for one in inside)
        if calls or any(one.what in ENDS for one in inside):
            return False
        changes = [one for one in inside if one.what in ("assign", "count")]
        return all(any(name.symbol in self.states for name, _ in self.facts.changes(one)) for one in changes)


def _calls(node: Node, names: re.Pattern[str]) -> bool:
    return any(one.what == "call" and names.fullmatch(one.op) for one in node.walk())


def _compared(test: Node) -> set[Key]:
    """The two sides that a test compares by size; empty for another test."""
    if test.what != "binary" or test.op not in ("<", ">", "<=", ">="):
        return set()
    return {key(one) for one in test.kids}


def _terms(node: Node, sign: str) -> list[tuple[Node, bool]]:
    """The operands of a chain of one operation, and whether it is added rather than taken away."""
    while node.what == "cast" and node.kids:
        node = node.kids[-1]
    if node.what != "binary" or _CHAINS.get(node.op) != sign:
        return [(node, True)]
    left, right = node.kids
    return [*_terms(left, sign), *((part, plus != (node.op == "-")) for part, plus in _terms(right, sign))]
