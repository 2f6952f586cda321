"""What people, editors and broken disks make of a file: strategies for texts and JSON that are nearly right."""

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2**31, 2**53, 2**64, 10**30]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["", "n", "n // 0", "float32", "nan", "Infinity", "[bold]", "[/]", "\x00", "\ud800", "a" * 5000]),
    st.sampled_from([[], {}, [[]], [None], {"": None}, {"a": []}, [{}]]).map(copy.deepcopy),
)
"""Values of JSON that rarely fit where they are put."""
TOML_VALUES = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.sampled_from(
        ['"x"', '""', "[]", "{}", "true", '["n"]', "[[1]]", '"n // 0"', '"10**18"', '"for"', '"\\u0000"', "1979-05-27"]
        + ['"' + "a" * 3000 + '"', '"float16"', '"reference.py"', '"../up.cl"', '"/dev/null"', '["", ""]']
        + ["[1, 1.0, true]"]
    ),
)
TOKENS = st.sampled_from(
    ["=", "[", "]", "[[", "{", "}", '"', "'''", "#", "\n", "\x00", "\x1b", "\ufeff", ".", ",", "é"]
)


def _places(inside: Any) -> list[tuple[Any, Any]]:
    """Each list or object at or below `inside` with each of its keys."""
    keys = sorted(inside) if isinstance(inside, dict) else range(len(inside)) if isinstance(inside, list) else ()
    return [place for key in keys for place in ((inside, key), *_places(inside[key]))]


@st.composite
def documents(draw: st.DrawFn, document: Any) -> Any:
    """`document` with one to three of its values replaced, taken away, doubled or put elsewhere."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        if not (places := _places(changed)):
            break
        inside, key = draw(st.sampled_from(places))
        how = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add", "wrap"]))
        if how == "replace":
            inside[key] = draw(VALUES)
        elif how == "remove":
            del inside[key]
        elif how == "wrap":
            inside[key] = [inside[key]]
        elif isinstance(inside, dict):
            inside[draw(st.text(max_size=8))] = copy.deepcopy(inside[key])
        else:
            inside.append(copy.deepcopy(inside[key]))
    return changed


@st.composite
def json_texts(draw: st.DrawFn, document: Any) -> str:
    """A changed document as text; now and then the text itself is damaged."""
    text = json.dumps(draw(documents(document)))
    return draw(damaged(text)) if draw(st.integers(0, 9)) == 0 else text


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """`text` cut, with a piece taken out or doubled, or with something put in."""
    start, length = draw(st.integers(0, len(text))), draw(st.integers(0, 60))
    how = draw(st.sampled_from(["cut", "remove", "double", "insert"]))
    piece = text[start : start + length]
    if how == "cut":
        return text[:start]
    if how == "remove":
        return text[:start] + text[start + length :]
    return text[:start] + (piece if how == "double" else draw(TOKENS)) + text[start:]


@st.composite
def toml_texts(draw: st.DrawFn, text: str) -> str:
    """A TOML text with the values of some of its keys replaced, lines taken out or doubled, or damaged as text."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["value", "value", "value", "part", "remove", "double", "damage"]))
        if how == "value" and " = " in lines[at]:
            lines[at] = f"{lines[at].split(' = ')[0]} = {draw(TOML_VALUES)}"
        elif how == "part" and " = " in lines[at]:
            # One value of several on the line, as in an inline table.
            parts = lines[at].split(" = ")
            which = draw(st.integers(1, len(parts) - 1))
            _, comma, tail = parts[which].partition(", ")
            parts[which] = f"{draw(TOML_VALUES)}{comma}{tail}" if comma else f"{draw(TOML_VALUES)} }},"
            lines[at] = " = ".join(parts)
        elif how == "remove" and len(lines) > 1:
            del lines[at]
        elif how == "double":
            lines.insert(at, lines[at])
        else:
            lines[at] = draw(damaged(lines[at]))
    return "\n".join(lines) + "\n"


SHAPES = (
    *(
        f"({{0}} {operator} {{1}})"
        for operator in ("+", "-", "*", "/", "//", "%", "&", "<", "<=", ">", ">=", "==", "!=")
    ),
    *(f"{function}({{0}}, {{1}})" for function in ("min", "max", "ceil_div", "round_up")),
    *(f"{function}({{0}})" for function in ("abs", "ceil", "floor", "is_pow2")),
    *("(-{0})", "(not {0})", "({0} if {1} else {2})", "({0} in ({1}, {2}))", "({0} not in [{1}, 8])"),
    "({0} <= {1} < {2})",
    # A truth value in our language, in Python an operand.
    *("(not not ({0} and {1}))", "(not not ({0} or {1}))"),
)
"""The language of expressions as Python has it, but for powers."""


def expressions(leaves: Sequence[str], *more: str, most: int = 6) -> st.SearchStrategy[str]:
    """Expressions of at most so many leaves, by SHAPES and `more` shapes."""

    def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.builds(str.format, st.sampled_from((*SHAPES, *more)), inner, inner, inner)

    return st.recursive(st.sampled_from(leaves), nested, max_leaves=most)


_LITERALS = ["0", "1", "7", "2**40", "10**30", "1e300", "-1", "0.5", "'float16'", "True", "1_000", "0x10", "1j"]
_REFUSED = ("{0} is {1}", "~{0}", "+{0}", "sizeof({0})", "log2({0})", "pow({0})", "len()", "eval({0})")
EXPRESSIONS = st.one_of(
    expressions(["n", "GROUP", "ITEMS", "T", "spare", *_LITERALS], "{0} ** {1}", "{0} << {1}", *_REFUSED, most=12),
    *(st.text(max_size=60), st.text("()[]{}n1.,*+-'\"\\ \n\t\0#:=<>!&|^~@", max_size=40)),
)
"""Expressions by a grammar, and arbitrary texts."""
