"""Texts of exports, made of templates: what every form has in common."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tunesmith import __version__
from tunesmith.graph.results.exports.package import Package
from tunesmith.kernels.spec.parameter import assignments
from tunesmith.kernels.spec.translate import PYTHON_FUNCTIONS

HERE = Path(__file__).resolve().parent


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["assignments"] = assignments
    return environment


def render(template: str, **values: Any) -> str:
    """The text of the template of a name."""
    return _environment().get_template(template).render(version=__version__, **values)


def dispatch_module(package: Package, *, runnable: bool = False) -> str:
    """The Python module that says which kernel serves a shape. runnable: also as a program."""
    combinations = []
    for index, types in enumerate(package.combinations):
        named = package.named(types)
        launches = [
            None
            if types not in kernel.codes
            else {
                "requires": [text for one in kernel.requires if (text := kernel.text(one, named)) != "True"],
                "grid": _three([kernel.text(one, named) for one in kernel.grid]),
                "block": _three([kernel.text(one, named) for one in kernel.block]),
                "shared": kernel.text(kernel.shared, named),
            }
            for kernel in package.kernels
        ]
        combinations.append(
            {
                "index": index,
                "types": types,
                "exact": package.exact(types),
                "rule": package.rule(types),
                "launches": launches,
            }
        )
    return render(
        "dispatch.py.j2",
        name=package.name,
        device=package.dispatch["device"],
        driver=package.dispatch["driver"],
        kernels=package.kernels,
        types=package.types,
        sizes=package.sizes,
        combinations=combinations,
        functions=PYTHON_FUNCTIONS.rstrip(),
        runnable=runnable,
    )


def _three(texts: list[str]) -> list[str]:
    return texts + ["1"] * (3 - len(texts))
