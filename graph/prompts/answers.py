"""The schemas of a model's answers, and the way from an answer to a `Template`.

The schemas keep to the structured output of all servers: every field is required, without defaults, free-form objects
and tuples. The meaning of an answer is decided by the project's own schemas, which also read files; nothing else of an
answer reaches the harness.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from tunesmith.graph.state import Bottleneck, BranchKind
from tunesmith.kernels.spec.task import Task, TaskError
from tunesmith.kernels.spec.taskfile import sentence
from tunesmith.kernels.spec.template import BACKENDS, TRITON_OPTIONS, BackendName, Config, Template
from tunesmith.kernels.spec.validation import validate_template

Value = bool | int | float | str
MAX_TEXT = 4000
"""Characters of a model's own words that are kept and shown to others."""


class Setting(BaseModel, extra="forbid"):
    name: str = Field(description="a parameter's name")
    value: Value


class BranchAnswer(BaseModel, extra="forbid"):
    kind: BranchKind = Field(description="what to make of the parent; the kinds are explained above")
    parent: str = Field(description='the id of a template listed under "Templates so far", or "baseline"')
    moves: list[str] = Field(
        description="what to change in the parent, one concrete step each; empty for a search of the parent as it is"
    )
    seeds: list[list[Setting]] = Field(
        description="configurations of the parent to try first, only in a search of it; may be empty"
    )


class PlanAnswer(BaseModel, extra="forbid"):
    """The plan of the next round."""

    analysis: str = Field(description="what bounds the best kernel now and what the measurements show; a few sentences")
    bottleneck: Bottleneck
    branches: list[BranchAnswer] = Field(description="the templates of this round, the most promising first")
    workloads: list[str] = Field(description="names of the tuned workloads to search on; empty: all of them")
    expected: str = Field(description="what this round should gain, in one sentence")


class RewriteAnswer(BaseModel, extra="forbid"):
    """A kernel as a whole, without parameters."""

    name: str = Field(description="short, lower case, says what is special about it, such as vector_rows")
    description: str = Field(description="how it works, what was changed and why; two or three sentences")
    source: str = Field(description="the whole device source")
    grid: list[str] = Field(description="one to three expressions: blocks along x, y, z")
    block: list[str] = Field(description="one to three expressions: threads along x, y, z")
    shared_bytes: str = Field(description='an expression: bytes of dynamic shared memory; "0" for none')
    static_shared_bytes: str = Field(description="an expression: bytes of shared memory the source declares")


class ParameterAnswer(BaseModel, extra="forbid"):
    name: str = Field(description="an upper-case identifier; the macro's name in the source")
    values: list[Value] = Field(description="all values it may take, in their natural order")
    default: Value = Field(description="one of the values")
    doc: str = Field(description="what it does to the generated code")


class ConstraintAnswer(BaseModel, extra="forbid"):
    expression: str = Field(description="an expression that must be true")
    because: str = Field(description="one sentence for the reader of a rejection")


class TemplateAnswer(RewriteAnswer):
    """A kernel with its execution choices as parameters."""

    parameters: list[ParameterAnswer]
    constraints: list[ConstraintAnswer]
    max_registers: str = Field(description='an expression: registers a thread may use; "0" for no cap')
    fast_math: str = Field(description='an expression: compile with fast math; "False" where it is not needed')
    seeds: list[list[Setting]] = Field(description="configurations to try first besides the default; may be empty")


class ExplainAnswer(BaseModel, extra="forbid"):
    """The lessons of a round."""

    lines: list[str] = Field(description="two to five short lines: what worked, what did not, and why")


def config_of(settings: Sequence[Setting]) -> Config:
    return {setting.name: setting.value for setting in settings}


def template_of(answer: RewriteAnswer, task: Task, backend: BackendName) -> Template:
    """The answer as a template of `task`, read by the schema that reads files. Raises `TaskError`, whose message lists
    the errors, for the author to read.

    An answer cannot declare `device_globals`: a kernel that keeps state between launches is the user's to allow.
    """
    fields: dict[str, Any] = {
        # Models like to give paths and quotes.
        "name": re.sub(r"[^A-Za-z0-9_.-]+", "_", answer.name).strip("_")[:40] or "template",
        "description": answer.description[:MAX_TEXT],
        "backend": backend,
        "entry": task.entry,
        "source": answer.source if answer.source.endswith("\n") else answer.source + "\n",
        "launch": {"grid": answer.grid, "block": answer.block, "shared_bytes": answer.shared_bytes or "0"},
        "static_shared_bytes": answer.static_shared_bytes or "0",
    }
    if isinstance(answer, TemplateAnswer):
        # A parameter that the source does not name can only be for the launch, or an option of Triton's compiler.
        named = set(TRITON_OPTIONS if BACKENDS[backend].python else ()) | set(re.findall(r"\w+", answer.source))
        fields |= {
            "parameters": [each.model_dump() | {"launch_only": each.name not in named} for each in answer.parameters],
            "constraints": [constraint.model_dump() for constraint in answer.constraints],
            "max_registers": None if answer.max_registers in ("", "0", "None") else answer.max_registers,
            "fast_math": answer.fast_math or "False",
        }
    try:
        template = Template.model_validate(fields)
    except ValidationError as error:
        mistakes = error.errors(include_url=False)[:10]
        raise TaskError("\n".join(f"{'.'.join(map(str, one['loc']))}: {sentence(one)}." for one in mistakes)) from error
    if isinstance(answer, TemplateAnswer) and not template.has_choices:
        raise TaskError("The template has no parameter with at least two values, so there is nothing to search.")
    validate_template(template, task, f"template {template.name}")
    return template
