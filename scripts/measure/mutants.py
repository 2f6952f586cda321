"""Makes mutants of the library's kernels, judges them, and counts the rejected ones.

    python scripts/measure/mutants.py --out FILE [--backend opencl|cuda] [--each N] [--seed S] [--workers N]
        [--device I --of N] [--only TEXT]

A mutant is a baseline, or a template at its default configuration, with one edit that probably makes it wrong, of the
tokens that clang reads. Each kernel gives as many, of all operators in turn. Nothing is known of types: mutants that do
not compile, or whose code is the kernel's own, do not count: about a third. FILE has every mutant with its edit and is
written after each; a second call goes on where the first stopped. Whoever has looked at a survivor writes
`"judgement": "equivalent: WHY"` or `"hole: WHY"` into its entry, which later calls keep; equivalent ones do not count.
Kernels without an edit are judged as well: each must be accepted.

--device I --of N takes the I-th of N shares of the mutants, on the device I where there is one, into a FILE of its own.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain, product, zip_longest
from typing import Any, NamedTuple

import clang.cindex as clang
from scipy.stats import binomtest

from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker, Deadlines
from tunesmith.cli.measure.runner import add_shares, execute
from tunesmith.cli.measure.verdicts import judge_all, judged, parser_of_verdicts
from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo, probe
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import library_tasks, load_task
from tunesmith.kernels.spec.template import BackendName, Template

SWAPS = {
    "guard": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "sign": {"+": "-", "-": "+", "*": "/", "/": "*", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*="},
    "mask": {"&&": "||", "||": "&&", "&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<", "%": "/"},
}
_MIN_MAX = re.compile(r"((?:\w*_)?f?)(min|max)(f?(?:_\w+)?\d*)")
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)")
_BARRIER = re.compile(r"barrier|sync|fence|wait", re.IGNORECASE)
_HALF = {
    "cuda": "{to} = __half2float(__float2half_rn({to} + ({x})));",
    "opencl": "{{ {to} += {x}; ushort half_; vstore_half_rte({to}, 0, (__private half*)&half_); "
    "{to} = vload_half(0, (__private half*)&half_); }}",
}
NEAR = 80
"""Tokens before and behind a name among which another is looked for to take its place."""


class Piece(NamedTuple):
    """A token, or an edit, which takes the place of the characters from start to end. kind: clang's of a token, or the
    operator that made the edit."""

    kind: str
    start: int
    end: int
    text: str


def parts_of(source: str) -> Iterator[list[Piece]]:
    """The tokens of a source in ASCII, then those of each macro of more than one token; of other directives none."""
    file = "source.cpp"
    tree = clang.Index.create().parse(file, ["-nostdinc"], [(file, source)])
    lines, end = [list[Piece]()], 0
    for token in tree.get_tokens(extent=tree.cursor.extent):
        at, kind = token.extent.start.offset, token.kind.name
        if re.search(r"(?<!\\)\n", source[end:at]):
            lines.append([])
        end = token.extent.end.offset
        if kind != "COMMENT":
            lines[-1].append(Piece(kind, at, end, token.spelling))
    yield [token for line in lines if line and line[0].text != "#" for token in line]
    for line in lines:
        if [token.text for token in line[:2]] == ["#", "define"]:
            called = len(line) > 3 and line[3].text == "(" and line[3].start == line[2].end
            body = line[[token.text for token in line].index(")") + 1 :] if called else line[3:]
            if len(body) > 1:
                yield body


@dataclass
class Part:
    """A part of a source. numbers: names of the kernel's arguments that are whole numbers."""

    tokens: Sequence[Piece]
    source: str
    numbers: Sequence[str]
    backend: BackendName

    def __post_init__(self) -> None:
        self.partner, self.in_brackets = dict[int, int](), set[int]()
        waiting = list[int]()
        for at, token in enumerate(self.tokens):
            if waiting and self.tokens[waiting[-1]].text != "{":
                self.in_brackets.add(at)
            if token.text in ("(", "[", "{"):
                waiting.append(at)
            elif token.text in (")", "]", "}") and waiting:
                self.partner[at] = waiting.pop()
                self.partner[self.partner[at]] = at
        self.variables = {at for at in range(len(self.tokens)) if self._is_variable(at)}

    def edits(self, rng: random.Random) -> Iterator[Piece]:
        for at, token in enumerate(self.tokens):
            yield from self._of_token(at, token, rng)
            if token.text in ("[", "(") and self.partner.get(at, at) > at + 1:
                yield from self._of_bracket(at, self.partner[at])
            before = self._text(at - 1)
            begins = before in (";", "{", "}", "else", "") or self._is_header(self.partner.get(at - 1, at))
            if begins and at not in self.in_brackets:
                yield from self._of_statement(at)

    def _text(self, at: int) -> str:
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    def _kind(self, at: int) -> str:
        return self.tokens[at].kind if 0 <= at < len(self.tokens) else ""

    def _written(self, start: int, end: int) -> str:
        """The text from one token to another, which is left out."""
        return self.source[self.tokens[start].start : self.tokens[end - 1].end] if end > start else ""

    def _placed(self, operator: str, text: str, start: int, end: int | None = None) -> Piece:
        """`text` in the place of the tokens from `start` to `end`, which is left out, or of one."""
        return Piece(operator, self.tokens[start].start, self.tokens[start if end is None else end - 1].end, text)

    def _before(self, operator: str, at: int, *texts: str) -> Iterator[Piece]:
        place = self.tokens[at - 1].end
        yield from (Piece(operator, place, place, text) for text in texts)

    def _is_header(self, at: int) -> bool:
        return self._text(at) == "(" and self._text(at - 1) in ("for", "if", "while")

    def _is_value(self, at: int) -> bool:
        """Whether a value ends with this token."""
        return self._kind(at) in ("IDENTIFIER", "LITERAL") or self._text(at) in (")", "]")

    def _is_variable(self, at: int) -> bool:
        """Whether the token is the name of a variable that is not declared here."""
        named = self._kind(at) == "IDENTIFIER" and "IDENTIFIER" not in (self._kind(at - 1), self._kind(at + 1))
        declared = self._kind(at - 1) == "KEYWORD" and self._text(at - 1) not in ("return", "else")
        return (
            named and not declared and self._text(at + 1) not in ("(", "::") and self._text(at - 1) not in (".", "::")
        )

    def _of_token(self, at: int, token: Piece, rng: random.Random) -> Iterator[Piece]:
        for operator, swaps in SWAPS.items():
            if token.text in swaps and self._is_value(at - 1):
                yield self._placed(operator, swaps[token.text], at)
        if (number := _NUMBER.fullmatch(token.text)) is not None:
            value, is_mask = int(number[1], 0), number[1][:2] in ("0x", "0X")
            for new in (value + 1, value >> 1 if is_mask else value - 1):
                if new >= 0:
                    yield self._placed("mask" if is_mask else "constant", f"{new}{number[2]}", at)
        elif token.kind == "LITERAL" and token.text[0] in ".0123456789":
            yield self._placed("constant", f"({token.text} + 1.0f)", at)
        if (named := _MIN_MAX.fullmatch(token.text)) is not None:
            yield self._placed("min_max", named[1] + ("min" if named[2] == "max" else "max") + named[3], at)
        if at not in self.variables:
            return
        if token.text in self.numbers and "*" in (self._text(at - 1), self._text(at + 1)):
            yield from (self._placed("stride", other, at) for other in self.numbers if other != token.text)
        first, times, second, plus, third = (self._text(at + step) for step in range(5))
        if (times, plus) == ("*", "+") and {at + 2, at + 4} <= self.variables:
            yield self._placed("stride", f"{third} * {second} + {first}", at, at + 5)
        near = {self._text(one) for one in range(max(0, at - NEAR), at + NEAR) if one in self.variables} - {token.text}
        if others := sorted(one for one in near if one.isupper() == token.text.isupper()):
            yield self._placed("operand", rng.choice(others), at)

    def _of_bracket(self, at: int, end: int) -> Iterator[Piece]:
        before = self._text(at - 1)
        if self._text(at) == "[":
            first = at - 1
            while self._text(first) == "]":
                first = self.partner[first] - 1
            if first in self.variables and self._text(first - 1) not in (">", ","):
                yield from self._before("index", end, " + 1", " - 1")
        elif before in ("if", "while"):
            leaves = self._text(end + 1) in ("return", "continue", "break")
            yield self._placed("guard", "0" if leaves else "1", at + 1, end)
            if any(self._text(one) in SWAPS["guard"] for one in range(at, end)):
                yield from self._before("bound", end, " + 1", " - 1")
        elif before == "for":
            yield from self._of_loop(at, end)
        elif self._is_access(at):
            comma = next((one for one in self._outside(at + 1, end) if self._text(one) == ","), end)
            yield from self._before("index", comma, " + 1", " - 1")

    def _is_access(self, at: int) -> bool:
        """Whether the brackets are those of a call of a function that loads or stores."""
        if self._text(at - 1) == ">":
            at = max((one for one in range(max(0, at - 8), at) if self._text(one) == "<"), default=at)
        named = re.search(r"load|store", self._text(at - 1), re.IGNORECASE) is not None
        return named and (self._kind(at - 2) == "PUNCTUATION" or self._text(at - 2) == "return")

    def _of_loop(self, at: int, end: int) -> Iterator[Piece]:
        places = [one for one in self._outside(at + 1, end) if self._text(one) == ";"]
        if len(places) != 2:
            return
        condition, step = places
        if condition > at + 1:
            yield from self._before("loop", condition, " + 1")
        if step > condition + 1:
            yield from self._before("bound", step, " + 1", " - 1")
        if end > step + 1:
            counted = re.fullmatch(r"\+\+(\w+)", text := self._written(step + 1, end))
            yield self._placed("loop", f"{counted[1]} += 2" if counted else f"{text} + 1", step + 1, end)
        yield self._placed("bound", ";", at - 1, self._end_of(end + 1) + 1)

    def _of_statement(self, at: int) -> Iterator[Piece]:
        end = self._end_of(at)
        starts = self._kind(at) == "IDENTIFIER" or self._text(at) in ("*", "++")
        if not starts or self._text(end) != ";" or self._kind(at + 1) in ("IDENTIFIER", "KEYWORD"):
            return
        is_barrier = _BARRIER.search(self._written(at, end).partition("(")[0]) is not None
        yield self._placed("barrier" if is_barrier else "statement", ";", at, end + 1)
        added = next((one for one in self._outside(at, end) if self._text(one) == "+="), None)
        if added is not None:
            half = _HALF[self.backend].format(to=self._written(at, added), x=self._written(added + 1, end))
            yield self._placed("half", half, at, end + 1)

    def _outside(self, at: int, end: int) -> Iterator[int]:
        """The tokens that stand in no further brackets."""
        while at < end:
            yield at
            at = self.partner.get(at, at) + 1 if self._text(at) in ("(", "[", "{") else at + 1

    def _end_of(self, at: int) -> int:
        """The last token of the statement that begins here."""
        while self._text(at) in ("for", "if", "while"):
            at = self.partner.get(at + 1, at + 1) + 1
        if self._text(at) == "{":
            return self.partner.get(at, at)
        found = (one for one in self._outside(at, len(self.tokens)) if self._text(one) in (";", "}"))
        return next(found, len(self.tokens) - 1)


def edits(source: str, numbers: Sequence[str], backend: BackendName, rng: random.Random) -> list[Piece]:
    """All edits that are made, in the order of the source. numbers: as of `Part`."""
    return [edit for tokens in parts_of(source) for edit in Part(tokens, source, numbers, backend).edits(rng)]


NO_KERNEL = ("compile_failed", "compile_crashed", "compile_timeout", "infeasible", "forbidden_source")
"""Reasons that say of a mutant only that it is not a kernel."""
SHOWN = 200
"""Characters of a line that the record has."""


@dataclass(frozen=True)
class Mutant:
    """A candidate for `verdicts.judged`. file: its name; kind: the operator, empty for a kernel without an edit;
    before, after: the lines of the edit."""

    file: str
    task: str
    kernel: str
    original: Template = field(repr=False)
    text: str = field(repr=False)
    kind: str = ""
    line: int = 0
    before: str = ""
    after: str = ""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Not empty where it should be rejected."""
        return ("any",) if self.kind else ()

    def load(self) -> tuple[Task, Template]:
        return load_task(self.task), self.original.model_copy(update={"source": self.text})

    def agrees(self, verdict: Any) -> bool:
        return bool(verdict.accepted) is not bool(self.kind)


def kernels(backend: BackendName) -> Iterator[Mutant]:
    """The library's kernels, without edits."""
    for name in library_tasks():
        task = load_task(name)
        if backend in task.backends:
            sources = task.sources(backend)
            for template in (sources.baseline.template, *sources.templates):
                kernel = f"{name}/{template.name}"
                yield Mutant(kernel, name, kernel, template, template.source)


def mutants_of(kernel: Mutant, seed: int, elsewhere: set[str]) -> list[Mutant]:
    """All mutants of a kernel, distinct: of each operator one in turn, in an order drawn by `seed`. elsewhere: lines of
    functions that other kernels have as well and that are not edited again, to which this one's are added."""
    rng, source, template = random.Random(f"{seed} {kernel.file}"), kernel.text, kernel.original
    numbers = [one.name for one in load_task(kernel.task).arguments if one.role == "scalar" and "int" in one.dtype]
    by_operator, seen, entry = defaultdict[str, list[Mutant]](list), {source}, source.index(template.entry + "(")
    for edit in edits(source, numbers, template.backend, rng):
        text = source[: edit.start] + edit.text + source[edit.end :]
        first, last = source.rfind("\n", 0, edit.start) + 1, source.find("\n", edit.end)
        before, after = source[first:last].strip(), source[first : edit.start] + edit.text + source[edit.end : last]
        if text in seen or (edit.start < entry and before in elsewhere):
            continue
        seen.add(text)
        if "__half2float" in edit.text:
            text = "#include <cuda_fp16.h>\n" + text
        line = source.count("\n", 0, edit.start) + 1
        name = f"{kernel.file} {edit.kind} {edit.start}-{edit.end} {edit.text or 'nothing'}"
        lines = before[:SHOWN], after.strip()[:SHOWN]
        made = Mutant(name, kernel.task, kernel.file, template, text, edit.kind, line, *lines)
        by_operator[edit.kind].append(made)
    elsewhere |= {line.strip() for line in source[:entry].splitlines()}
    for found in by_operator.values():
        rng.shuffle(found)
    names = sorted(by_operator)
    rng.shuffle(names)
    return [one for one in chain.from_iterable(zip_longest(*(by_operator[name] for name in names))) if one is not None]


@cache
def _compiler(limits: DeviceLimits, index: int) -> Isolated:
    """The process that compiles for this one, with which it ends at the latest."""
    return Isolated("compile", CompileWorker, limits, index)


@lru_cache(maxsize=64)
def _machine_code(template: Template, types: tuple[tuple[str, str], ...], limits: DeviceLimits, index: int) -> bytes:
    """Empty where it does not compile."""
    source = specialise(template, template.default_config, dict(types))
    made = _compiler(limits, index).call("compile", Deadlines().compile, source)
    return made.code if isinstance(made, Artifact) else b""


def unfit(mutant: Mutant, limits: DeviceLimits, index: int) -> str:
    """Why there is nothing to judge: "same code" as the kernel's for all types, or "compile_failed"; else empty."""
    task, template = mutant.load()
    for types in product(*([(name, one) for one in options] for name, options in sorted(task.types.items()))):
        own = _machine_code(mutant.original, types, limits, index)
        if own and (code := _machine_code(template, types, limits, index)) != own:
            return "" if code else "compile_failed"
    return "same code"


def answer(mutant: Mutant, device: DeviceInfo, deadlines: Deadlines, commit: str, processes: int) -> dict[str, Any]:
    """A mutant's line."""
    about = {"kernel": mutant.kernel, "line": mutant.line, "before": mutant.before, "after": mutant.after}
    if mutant.kind and (why := unfit(mutant, device.limits, device.index)):
        named = {"candidate": mutant.file, "task": mutant.task, "class": mutant.kind, "wrong": True}
        return named | about | {"verdict": "not judged", "reason": why, "commit": commit}
    line = judged(mutant, device, deadlines, commit, processes) | about
    if mutant.kind and line["verdict"] == "accepted":
        # A compiler that has compiled much may give the same code other names: compared once more by a new one.
        _compiler(device.limits, device.index).end()
        _machine_code.cache_clear()
        if why := unfit(mutant, device.limits, device.index):
            return line | {"verdict": "not judged", "reason": why}
    return line


def counts(line: dict[str, Any]) -> bool:
    """Whether a line is of a mutant that should be rejected."""
    judged_equal = str(line.get("judgement", "")).startswith("equivalent")
    no_kernel = line["verdict"] in ("not judged", "error") or line["reason"] in NO_KERNEL
    return bool(line["class"]) and not judged_equal and not no_kernel


def is_killed(line: dict[str, Any]) -> bool:
    return line["verdict"] == "rejected" or bool(line["printed"])


def _share(lines: Sequence[dict[str, Any]]) -> str:
    """The share of killed mutants, with its interval of 95 % (E. B. Wilson, "Probable inference", 1927)."""
    killed = sum(map(is_killed, lines))
    low, high = binomtest(killed, len(lines)).proportion_ci(method="wilson")
    return f"{killed} of {len(lines)}: {killed / len(lines):.1%} ({low:.1%} - {high:.1%})"


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of mutants that were rejected, with intervals of 95 %, and the survivors."""
    found = [line for line in lines if counts(line)]
    left_out = [line for line in lines if line["class"] and not counts(line)]

    def by(key: str) -> dict[str, str]:
        names = sorted({one[key] for one in found})
        return {name: _share([one for one in found if one[key] == name]) for name in names}

    return {
        "rejected": _share(found) if found else "none judged",
        "originals_not_accepted": [line["candidate"] for line in lines if not line["class"] and is_killed(line)],
        "left_out": dict(Counter("equivalent" if "judgement" in one else one["reason"] for one in left_out)),
        "errors": [line["candidate"] for line in lines if line["verdict"] == "error"],
        "by_operator": by("class"),
        "by_kernel": by("kernel"),
        "reasons": dict(Counter(line["reason"] for line in found if is_killed(line)).most_common()),
        "survivors": [line["candidate"] for line in found if not is_killed(line)],
        "minutes": round(sum(line.get("seconds", 0.0) for line in lines) / 60, 1),
    }


def main() -> int:
    """Judges, and writes the file."""
    parser = parser_of_verdicts(__doc__)
    parser.add_argument("--each", type=int, default=25, help="mutants of each kernel")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    add_shares(parser)
    options = parser.parse_args()
    found, elsewhere, chosen = probe(), set[str](), list[Mutant]()
    device = found.device(options.backend, options.device if options.device < len(found.of(options.backend)) else 0)
    for kernel in kernels(options.backend):
        made = mutants_of(kernel, options.seed, elsewhere)[: options.each]
        chosen += [kernel, *made] if options.only in kernel.file else []
    return judge_all(chosen[options.device :: options.of], answer, device, options, "mutants", summary)


if __name__ == "__main__":
    execute(main)
