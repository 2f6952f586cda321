"""The template that rules made of the task's kernel, tried before it is searched.

The kernel is right, as the baseline has shown: where the template's default configuration is not, or does not compile,
a rule is at fault, and not the user. It is withdrawn with the reason, and the run goes on with what remains; without
any rule that is the plain kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.graph.context import Context
from tunesmith.graph.roles.templating.trial import Problem, infeasible, problem_of, try_templates
from tunesmith.kernels.outcome import Implausible
from tunesmith.kernels.rewrite.template import NAME, Rewritten, rewrite
from tunesmith.kernels.spec.template import Template

WITHDRAWN = "Rules of it were withdrawn; another template, of fewer, has its place."
"""Why the tree leaves out the template that did not hold."""


def is_by_rules(template: Template) -> bool:
    return template.name == NAME


def holding(context: Context, template: Template, stage: str) -> Template:
    """`template`, made by rules, or one of fewer rules whose default configuration holds on all tuned workloads. The
    notes say why each of the others was withdrawn; the trials are in the journal, and are found there again."""
    withdrawn: dict[str, str] = {}
    problem = _problem(context, template, stage)
    if problem is None:
        return template
    rules = _made(context, None).rules
    while problem is not None and rules:
        # A beginning of the list that holds, and the next longer one, which does not: its last rule is at fault.
        holds, fails = 0, len(rules)
        while fails - holds > 1:
            middle = (holds + fails) // 2
            tried = _made(context, rules[:middle]).template
            found = None if tried is None else _problem(context, tried, stage)
            holds, fails = (middle, fails) if found is None else (holds, middle)
            problem = found or problem
        withdrawn[rules[fails - 1]] = problem.in_short
        rules = _made(context, [one for one in rules if one not in withdrawn]).rules
        template = _made(context, rules).template or _plain(context)
        problem = _problem(context, template, stage)
    for rule, why in withdrawn.items():
        context.note("template", f"The rule {rule} is withdrawn, as what it makes of the kernel fails: {why}", stage)
    return template


def _made(context: Context, only: Sequence[str] | None) -> Rewritten:
    return rewrite(context.task, context.device.limits.backend, only)


def _plain(context: Context) -> Template:
    description = "The kernel as it came: no rule fits it."
    return context.sources.baseline.template.model_copy(update={"name": NAME, "description": description})


def _problem(context: Context, template: Template, stage: str) -> Problem | None:
    """What is wrong with its default configuration; None also where the budget does not allow to find out."""
    if (problem := infeasible(template, context)) is not None:
        return problem
    if context.evaluations_left() <= 0 or context.seconds_left() <= 0:
        return None
    evaluation = try_templates(context, [template], stage, context.tuned)[template.id]
    # An impossible time says nothing of the code.
    return None if isinstance(evaluation.failure, Implausible) else problem_of(evaluation)
