"""`tunesmith prompts`."""

from __future__ import annotations

from typing import Annotated

import typer

from tunesmith.cli.app import Backend, Target, TaskArgument


def prompts(
    task: TaskArgument,
    role: Annotated[str, typer.Option(help="Whose prompts: plan, template or all.")] = "all",
    target: Target = None,
    backend: Backend = "auto",
) -> None:
    """Print what a model would be asked in the first round; no model is asked, and no device is needed."""
    from tunesmith.cli.actions.prompts import show_prompts

    show_prompts(task, role, target, backend)
