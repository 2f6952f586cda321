"""The exports of a tuning for the owner of a Triton kernel: `tuned.py`, JSON for each device, lines of a list.

`tuned.py` is `kernels/triton/tuned.py` with a table written in. `configs/NAME,device_name=DEVICE.json` is the layout of
vLLM and of Hugging Face's kernels: the configuration by batch size. A configuration belongs to the kernel's own text:
where a winner has another text (a model's rewrite), its source is the way out, and no table has it.
"""

from __future__ import annotations

import ast
import json
import pprint
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith.kernels.build.python_source import fixed_in, kernel_of
from tunesmith.kernels.spec.dtypes import DTYPE_NAMES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.template import TRITON_OPTIONS, Config, Template, without_options
from tunesmith.kernels.spec.translate import folded

TUNED = Path(__file__).with_name("tuned.py")
BATCH = ("M", "batch", "tokens", "num_tokens", "rows", "B", "n")
"""Names of the size by which a device's file lists configurations, the likeliest first, where several vary."""
_TABLE = re.compile(r"(?<=^# The table\n).*?(?=^# The decorator)", re.MULTILINE | re.DOTALL)


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
    parsed = {name: kernel_body(one.template.source, one.template.entry) for name, one in kernels.items()}
    usable = {name: kernels[name] for name in parsed if parsed[name] == kernel_body(own.source, own.entry)}
    configs = {name: one.config or _author_config(one.template, own) for name, one in usable.items()}
    others = sorted(set(kernels) - set(usable) - {"baseline"})
    (folder / "tuned.py").write_text(_tuned(about, usable, own, arch, others), encoding="utf-8")
    (folder / "configs.txt").write_text("".join(_lines(about, configs)), encoding="utf-8")
    (folder / "configs").mkdir()
    for file, content in device_files(about, configs):
        (folder / "configs" / file).write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")


def _author_config(template: Template, own: Template) -> Config:
    """The author's values of the parameters of `own`, as the baseline has them."""
    known = fixed_values(template.source)
    return {one.name: known[one.name] for one in own.parameters if one.name in known}


def kernel_body(source: str, entry: str) -> str:
    """The kernel's arguments and statements, without decorators, comments and layout; empty where it is not there."""
    kernel = kernel_of(source, entry)
    return "".join(map(ast.dump, (kernel.args, *kernel.body))) if kernel else ""


def fixed_values(source: str) -> dict[str, Any]:
    """The numbers, texts, flags and Nones of a source's `FIXED`."""
    return {name: one.value for name, one in fixed_in(ast.parse(source)).items() if isinstance(one, ast.Constant)}


def config_line(config: Mapping[str, Any]) -> str:
    """A configuration as `triton.Config(...)`."""
    constants, options = without_options(config)
    return f"triton.Config({constants!r}{''.join(f', {name}={value!r}' for name, value in options.items())})"


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
    about: Mapping[str, Any], kernels: Mapping[str, Kernel], own: Template, arch: str, others: Sequence[str]
) -> str:
    """The text of tuned.py. others: kernels of best/ that have another text."""
    signature, number = about["signature"], re.fullmatch(r"sm_(\d+)[af]?", arch)
    names = [one["name"] for key in ("sizes", "types") for one in signature[key]]
    listed = {name: one for name, one in kernels.items() if name != "baseline"}
    options = {*TRITON_OPTIONS, *(name for one in listed.values() for name in one.config)}
    grid = {name for one in listed.values() for text in one.template.launch.grid for name in parse(text).names}
    # A call may pass anything for an argument that the kernel does not use.
    used = {one.id for one in ast.walk(ast.parse(own.source)) if isinstance(one, ast.Name)}
    sizes, values = dict(_sizes(signature)), fixed_values(own.source)
    measured = {}
    for row in about["shapes"]:
        shape = tuple({**row["sizes"], **row["types"]}[name] for name in names)
        measured[shape] = row["folder"] if row["folder"] in listed else None
    table = {
        "TARGET": ("cuda", int(number[1])) if number else ("hip", arch),
        "SIZES": sizes,
        "TYPES": {one["name"]: one["argument"] for one in signature["types"]},
        "FIXED": {name: value for name, value in values.items() if name in used - options},
        "GRID": tuple(sorted(grid & options)),
        "CONFIGS": {name: one.config for name, one in listed.items()},
        "MEASURED": measured,
    }
    text = "".join(f"{key} = {pprint.pformat(value, width=100, sort_dicts=False)}\n" for key, value in table.items())
    conditions = ""
    for name, one in listed.items():
        held = [made for made in (_python(text, one.config) for text in one.requires) if made != "True"]
        conditions += (
            f"    {name!r}: lambda {', '.join(names)}: {' and '.join(f'({made})' for made in held) or True},\n"
        )
    text += f"REQUIRES = {{\n{conditions}}}\n\n\ndef rule({', '.join(names)}):\n"
    text += "".join(f"{line}\n" for line in _branches(about["rule"], listed, "    ")) + "\n\n"
    head = f"# {about['task']} on {about['device']}, {about['compiler']}: {' '.join(about['verdict'].split())}\n"
    if others:
        head += f"# Not here, as their text is another than the kernel's: {', '.join(others)}; see their folders.\n"
    if untold := [name for name, source in sizes.items() if not source]:
        head += f"# No argument of a call tells {', '.join(untold)}, so that the first of the list serves every call.\n"
    return head + _TABLE.sub(lambda _: text, TUNED.read_text(encoding="utf-8"))


def _sizes(signature: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Where a call tells each size: the scalar that is it, else an array's name, rank, dimension and factor."""
    arguments = {one["name"]: one for one in signature["arguments"]}
    for size in signature["sizes"]:
        scalars, array = [name for name, one in arguments.items() if one.get("value") == size["name"]], size["argument"]
        if scalars or array is None:
            yield size["name"], scalars[0] if scalars else ""
        else:
            yield size["name"], (array, len(arguments[array]["shape"]), size["dimension"], size["factor"])


def _branches(rule: Mapping[str, Any], known: Collection[str], indent: str) -> Iterator[str]:
    if "test" not in rule:
        yield f"{indent}return {rule['folder'] if rule['folder'] in known else None!r}"
        return
    yield f"{indent}if {_python(rule['test'], {})}:"
    yield from _branches(rule["yes"], known, indent + "    ")
    yield from _branches(rule["no"], known, indent)


def _python(text: str, values: Mapping[str, Any]) -> str:
    """An expression with `values` for names, as tuned.py evaluates it."""
    return folded(text, {**DTYPE_NAMES, **values})
