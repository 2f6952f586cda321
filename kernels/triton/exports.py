"""What of a tuning the owner of a Triton kernel takes along: `tuned.py`, JSON for each device, lines of a list.

`tuned.py` is `kernels/triton/tuned.py` with a table written in. `configs/NAME,device_name=DEVICE.json` is the layout of
vLLM and of Hugging Face's kernels: the configuration by batch size. A configuration belongs to the kernel's own text:
where a winner has another text (a model's rewrite), its source is the way out, and no table has it.
"""

from __future__ import annotations

import ast
import json
import pprint
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.kernels.build.python_source import FIXED
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import TRITON_OPTIONS, Config, Template
from tunesmith.kernels.spec.translate import folded

TUNED = Path(__file__).with_name("tuned.py")
BATCH = ("M", "batch", "tokens", "num_tokens", "rows", "B", "n")
"""Names of the size by which a device's file lists configurations, the likeliest first, where several vary."""
_TABLE = re.compile(r"(?<=^# The table\n).*?(?=^# The decorator)", re.MULTILINE | re.DOTALL)
_TYPES = {name: name for name in DTYPES}
_BYTES = {name: kind.size for name, kind in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of best/. requires: conditions of a launch, expressions over sizes, types and the configuration."""

    template: Template
    config: Config
    requires: Sequence[str]


def write_exports(
    folder: Path, about: Mapping[str, Any], kernels: Mapping[str, Kernel], own: Template, arch: str
) -> None:
    """Writes the files into `folder`, which is best/.

    about: dispatch.json; kernels: by folder; own: the template with the kernel's own text; arch: "sm_90"."""
    body, fixed = kernel_body(own.source, own.entry), fixed_values(own.source)
    usable = {
        name: one for name, one in kernels.items() if kernel_body(one.template.source, one.template.entry) == body
    }
    parameters = [one.name for one in own.parameters]
    configs = {name: one.config for name, one in usable.items() if one.config}
    for name, one in usable.items():
        if not one.config:  # the kernel with its author's numbers
            known = fixed_values(one.template.source)
            configs[name] = {key: ast.literal_eval(known[key]) for key in parameters if key in known}
    others = sorted(set(kernels) - set(usable) - {"baseline"})
    (folder / "tuned.py").write_text(_tuned(about, usable, configs, fixed, arch, others), encoding="utf-8")
    (folder / "configs.txt").write_text("".join(_lines(about, configs)), encoding="utf-8")
    (folder / "configs").mkdir()
    for file, content in device_files(about, configs):
        (folder / "configs" / file).write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")


def kernel_body(source: str, entry: str) -> str:
    """The kernel's arguments and statements, without decorators, comments and layout; empty where it is not there."""
    found = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == entry]
    return "".join(map(ast.dump, (found[-1].args, *found[-1].body))) if found else ""


def fixed_values(source: str) -> dict[str, str]:
    """`FIXED` of a source, as texts of Python."""
    for one in ast.parse(source).body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == FIXED and isinstance(one.value, ast.Dict):
            pairs = zip(one.value.keys, one.value.values, strict=True)
            return {str(ast.literal_eval(key)): ast.unparse(value) for key, value in pairs if key is not None}
    return {}


def config_line(config: Mapping[str, Any]) -> str:
    """A configuration as `triton.Config(...)`."""
    constants = {name: value for name, value in config.items() if name not in TRITON_OPTIONS}
    options = "".join(f", {name}={config[name]!r}" for name in TRITON_OPTIONS if name in config)
    return f"triton.Config({constants!r}{options})"


def _lines(about: Mapping[str, Any], configs: Mapping[str, Config]) -> Iterator[str]:
    shapes: dict[str, list[str]] = {}
    for row in about["shapes"]:
        shapes.setdefault(row["folder"], []).append(row["workload"])
    yield f"# {about['task']} on {about['device']}: for the list of @triton.autotune, with the shapes they won.\n"
    for name, config in sorted(configs.items(), key=lambda one: (one[0] == "baseline", one[0] != "general")):
        won = f": {', '.join(shapes[name])}" if name in shapes else ""
        yield f"{config_line(config)},  # {name}{won}\n"


def device_files(about: Mapping[str, Any], configs: Mapping[str, Config]) -> list[tuple[str, dict[str, Config]]]:
    """Files by name, each with configurations by the size that stands for a batch; for each combination of the other
    sizes and of types a file of its own. A shape whose kernel has no configuration of its own is left out."""
    rows = [row for row in about["shapes"] if configs.get(row["folder"])]
    every = {name: {row["sizes"][name] for row in rows} for row in rows for name in row["sizes"]}
    varied = [name for name in every if len(every[name]) > 1] or list(every)
    batch = next((name for name in (*BATCH, *varied) if name in varied), "")
    several = len({str(row["types"]) for row in rows}) > 1
    device, found = re.sub(r"[^\w.-]+", "_", about["device"]), dict[str, dict[str, Config]]()
    for row in sorted(rows, key=lambda one: one["sizes"].get(batch, 0)):
        name = ",".join(f"{size}={value}" for size, value in row["sizes"].items() if size != batch) or about["task"]
        name += f",device_name={device}" + (f",dtype={'_'.join(row['types'].values())}" if several else "")
        found.setdefault(f"{name}.json", {})[str(row["sizes"].get(batch, 0))] = configs[row["folder"]]
    return list(found.items())


# tuned.py


def _tuned(
    about: Mapping[str, Any],
    kernels: Mapping[str, Kernel],
    configs: Mapping[str, Config],
    fixed: Mapping[str, str],
    arch: str,
    others: Sequence[str],
) -> str:
    """The text of tuned.py. others: kernels of best/ that have another text."""
    names = [
        *(one["name"] for one in about["signature"]["sizes"]),
        *(one["name"] for one in about["signature"]["types"]),
    ]
    listed, parameters = {name: configs[name] for name in kernels if name != "baseline"}, ", ".join(names)
    options = [*TRITON_OPTIONS, *(name for config in listed.values() for name in config)]
    grid = {name for key in listed for text in kernels[key].template.launch.grid for name in parse(text).names}
    number = re.fullmatch(r"sm_(\d+)[af]?", arch)
    measured = {
        tuple({**row["sizes"], **row["types"]}[name] for name in names): row["folder"]
        if row["folder"] in listed
        else None
        for row in about["shapes"]
    }
    texts = {
        "TARGET": repr(("cuda", int(number[1])) if number else ("hip", arch)),
        "SIZES": _shown(dict(_sizes(about["signature"]))),
        "TYPES": _shown({one["name"]: one["argument"] for one in about["signature"]["types"]}),
        "FIXED": _shown(
            {name: ast.literal_eval(text) for name, text in fixed.items() if name not in options and _plain(text)}
        ),
        "GRID": repr(tuple(sorted(grid & {*options}))),
        "CONFIGS": _shown(listed),
        "MEASURED": _shown(measured),
        "REQUIRES": "{"
        + "".join(f"\n    {name!r}: {_condition(kernels[name], parameters)}," for name in listed)
        + "\n}",
    }
    table = "".join(f"{name} = {text}\n" for name, text in texts.items())
    table += f"\n\ndef rule({parameters}):\n" + "\n".join(_branches(about["rule"], listed, "    ")) + "\n\n\n"
    made = _TABLE.sub(lambda _: table, TUNED.read_text(encoding="utf-8"))
    head = f"# {about['task']} on {about['device']}, {about['compiler']}: {' '.join(about['verdict'].split())}\n"
    if others:
        head += f"# Not here, as their text is another than the kernel's: {', '.join(others)}; see their folders.\n"
    if untold := [name for name, source in _sizes(about["signature"]) if not source]:
        head += f"# No argument of a call tells {', '.join(untold)}, so that the first of the list serves every call.\n"
    return head + made


def _shown(value: Any) -> str:
    return pprint.pformat(value, width=116, sort_dicts=False)


def _plain(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except ValueError:
        return False
    return True


def _sizes(signature: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where a call tells each size: the scalar that is it, else an array's name, rank, dimension and factor."""
    arguments = {one["name"]: one for one in signature["arguments"]}
    for size in signature["sizes"]:
        scalars = [name for name, one in arguments.items() if one.get("value") == size["name"]]
        array = size["argument"]
        if scalars or array is None:
            yield size["name"], scalars[0] if scalars else ""
        else:
            yield size["name"], (array, len(arguments[array]["shape"]), size["dimension"], size["factor"])


def _condition(kernel: Kernel, parameters: str) -> str:
    found = [python_text(text, kernel.config) for text in kernel.requires]
    return f"lambda {parameters}: " + (" and ".join(f"({text})" for text in found if text != "True") or "True")


def _branches(rule: Mapping[str, Any], known: Iterable[str], indent: str) -> Iterator[str]:
    if "test" not in rule:
        yield f"{indent}return {rule['folder'] if rule['folder'] in known else None!r}"
        return
    yield f"{indent}if {python_text(rule['test'], {})}:"
    yield from _branches(rule["yes"], known, indent + "    ")
    yield from _branches(rule["no"], known, indent)


def python_text(text: str, values: Mapping[str, Any]) -> str:
    """An expression with `values` for names, as Python that needs no more than `math`."""
    tree = ast.parse(folded(text, {**_TYPES, **values}), mode="eval").body
    return ast.unparse(ast.fix_missing_locations(_Plain().visit(tree)))


class _Plain(ast.NodeTransformer):
    """Calls of the expression language in plain Python."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        forms = {
            "ceil_div": "-(-({0}) // ({1}))",
            "round_up": "-(-({0}) // ({1})) * ({1})",
            "is_pow2": "(({0}) > 0 and ({0}) & (({0}) - 1) == 0)",
            "log2": "math.log2({0})",
            "ceil": "math.ceil({0})",
            "floor": "math.floor({0})",
            "sizeof": str(_BYTES).replace("{", "{{").replace("}", "}}") + "[{0}]",
        }
        passed = [self.visit(one) for one in node.args]
        name = ast.unparse(node.func)
        if name not in forms:
            return ast.Call(node.func, passed, [])
        return ast.parse(forms[name].format(*map(ast.unparse, passed)), mode="eval").body
