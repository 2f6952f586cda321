"""The templater: the templates of a round, taken from the task or written by a model, and tried before their search.

A trial asks whether the default configuration is feasible, compiles and is right on every workload, held-out ones
included. It is an evaluation like any other: it counts towards the budget, and the search does not repeat it.

The prompt is a function of journal, plan and branch; its worked example is the library's most similar task, by traits
of the plain source, or in CUDA the kit, that task's headers first. Retrieval of that kind is the idea of Trümper et
al., "Performance Embeddings" (ICS 2023); theirs are learned, these are counted, for a handful of kernels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import tree_sitter_cuda
from pydantic import BaseModel, Field, ValidationError
from tree_sitter import Language, Node, Parser

from tunesmith.graph.context import Context
from tunesmith.graph.journal import events
from tunesmith.graph.journal.log import LIBRARY, REJECTED, TRIAL, Tree, round_of, stage_of
from tunesmith.graph.models.calls import Message, ModelCall, ModelFailed, Models
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts import conversation, render, scrubbed
from tunesmith.graph.prompts.facts import choices, node_facts, run_facts
from tunesmith.graph.roles.examination import examine
from tunesmith.graph.roles.planner import MAX_TEXT, Setting, Value, config_of, searches
from tunesmith.graph.state import Branch, Plan, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.build.guard import HEADER_FOLDERS, HEADERS, refuse
from tunesmith.kernels.build.source import code_key, kit, specialise
from tunesmith.kernels.outcome import CompileFailed, Evaluation, Implausible, describe
from tunesmith.kernels.rewrite.template import NAME, rewrite
from tunesmith.kernels.space import feasible, require_points
from tunesmith.kernels.spec.expression import FUNCTIONS
from tunesmith.kernels.spec.task import Task, TaskError, Workload, geometry
from tunesmith.kernels.spec.taskfile import library_tasks, read_task, sentence
from tunesmith.kernels.spec.template import BACKENDS, TRITON_OPTIONS, BackendName, Config, Template, config_key
from tunesmith.kernels.spec.validation import validate_template


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


MAX_LOG = 3000
"""Characters of a compiler's log that go back to an author."""

_PROBLEMS = {
    "schema": ("It is not a template that can be used", ""),
    "forbidden_source": (
        "The source is refused before compiling",
        "Include only the listed headers, and name no files.",
    ),
    "infeasible": ("It is not feasible", "Choose a default that meets the constraints and the device's limits."),
    "compile_failed": ("It does not compile", "Line numbers refer to your source."),
    "wrong_result": (
        "Its result is wrong",
        "Check tails, odd sizes, aligned vector accesses, barriers, and every type.",
    ),
    "launch_failed": ("It cannot be launched, or faults", "Look for accesses out of bounds or not aligned."),
    "timed_out": ("It does not end in time", "Look for endless loops and barriers that not all threads reach."),
    "crashed": ("The process that ran it died", "Look for accesses out of bounds."),
    "implausible": ("Its time is impossible", ""),
    "rejected": ("It was refused", ""),
    "examined": (
        "Its result is wrong on other sizes or contents than the task's own",
        "It must be right for all that the task allows: odd sizes, outliers, infinities, NaN.",
    ),
}
"""Clause and advice for the author of a template, by the kind of failure of its default configuration."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a template does not work. log: of the compiler or checker; first: its most telling line, or empty."""

    kind: str
    log: str
    where: str = ""
    first: str = ""

    @property
    def what(self) -> str:
        on = f" on the workload {self.where}" if self.where else ""
        return f"{_PROBLEMS[self.kind][0]} with its default configuration{on}."

    @property
    def in_short(self) -> str:
        """For people: the sentence, and one line of the log."""
        return f"{self.what} {self.first or self.log.strip().partition(chr(10))[0]}".strip()


def read_answer(answer: RewriteAnswer, context: Context) -> Template | Problem:
    """The template of an answer, if it may be tried. Needs no device."""
    try:
        template = template_of(answer, context.task, context.device.limits.backend)
    except TaskError as error:
        return Problem("schema", str(error))
    return infeasible(template, context) or template


def infeasible(template: Template, context: Context) -> Problem | None:
    """Why the template cannot be tried at all, or None. Needs no device."""
    try:
        for workload in (*context.tuned, *context.held_out):
            source = specialise(template, template.default_config, dict(code_key(context.task, template, workload)))
            geometry(template, template.default_config, workload)
            if (refused := refuse(source)) is not None:
                return Problem("forbidden_source", refused.detail)
        for limits in context.limits:
            space = feasible(template, context.tuned, limits)
            require_points(space, template)
            if (reason := space.reject(template.default_config)) is not None:
                return Problem("infeasible", reason.detail)
    except TunesmithError as error:
        return Problem("infeasible", str(error))
    return None


def problem_of(evaluation: Evaluation) -> Problem | None:
    """The problem that a failed trial shows its author; None for a trial without a failure."""
    failure = evaluation.failure
    if failure is None:
        return None
    if isinstance(failure, CompileFailed):
        return Problem(failure.kind, failure.log[:MAX_LOG] or failure.first_error, first=failure.first_error)
    where = next((name for name, outcome in evaluation.outcomes.items() if outcome is failure), "")
    return Problem(failure.kind, describe(failure), where)


def _wrong_elsewhere(context: Context, template: Template) -> Problem | None:
    """The problem that a brief examination found, if there is one."""
    found = context.log.examinations(brief=True).get((template.id, config_key(template.default_config), ""))
    return Problem("examined", found.detail) if found is not None and found.verdict == "rejected" else None


def measured(context: Context, requests: Sequence[EvaluationRequest], stage: str) -> list[Evaluation]:
    """The evaluations of `requests`, journalled as they come."""
    if requests:
        context.pool.roofline = context.roofline()
    found: list[Evaluation] = []
    for request, evaluation in context.pool.evaluate(requests):
        key = config_key(evaluation.config)
        context.journal.append(events.Evaluated(number=request.number, key=key, evaluation=evaluation), stage)
        found.append(evaluation)
    return found


def trials_of(context: Context, stage: str) -> dict[str, Evaluation]:
    """The trials of a round that are in the journal, by template id."""
    return {evaluation.template: evaluation for evaluation in context.log.evaluations(stage + TRIAL)}


def try_templates(
    context: Context, templates: Sequence[Template], stage: str, workloads: Sequence[Workload] = ()
) -> dict[str, Evaluation]:
    """Evaluations of default configurations by template id, measured now or journalled; on `workloads`, or on all."""
    known = trials_of(context, stage)
    names = tuple(workload.name for workload in workloads or (*context.tuned, *context.held_out))
    wanted = [template for template in templates if template.id not in known]
    requests = [EvaluationRequest(at, one, one.default_config, names) for at, one in enumerate(wanted, len(known))]
    return known | {one.template: one for one in measured(context, requests, stage + TRIAL)}


WITHDRAWN = "Rules of it were withdrawn; another template, of fewer, has its place."
"""Why the tree leaves out a template with a wrong rule."""


def without_wrong_rules(context: Context, template: Template, stage: str) -> Template:
    """The rules' template, or one of fewer rules, with a default that is right on the tuned workloads."""
    task, backend, withdrawn = context.task, context.device.limits.backend, dict[str, str]()

    def problem_with(tried: Template) -> Problem | None:
        """None also where the budget does not allow to find out."""
        if (problem := infeasible(tried, context)) is not None:
            return problem
        if context.evaluations_left() <= 0 or context.seconds_left() <= 0:
            return None
        evaluation = try_templates(context, [tried], stage, context.tuned)[tried.id]
        # An impossible time does not mean that the code is wrong.
        return None if isinstance(evaluation.failure, Implausible) else problem_of(evaluation)

    if (problem := problem_with(template)) is None:
        return template
    rules = [*rewrite(task, backend).rules]
    while problem is not None and rules:
        # The first `holds` rules are right, the first `fails` are not: the rule between them is at fault.
        holds, fails = 0, len(rules)
        while fails - holds > 1:
            middle = (holds + fails) // 2
            tried = rewrite(task, backend, rules[:middle]).template
            found = None if tried is None else problem_with(tried)
            holds, fails = (middle, fails) if found is None else (holds, middle)
            problem = found or problem
        withdrawn[rules[fails - 1]] = problem.in_short
        fewer = rewrite(task, backend, [one for one in rules if one not in withdrawn])
        template = fewer.template or template
        rules, problem = [*fewer.rules], problem_with(template)
    for rule, why in withdrawn.items():
        context.note("template", f"The rule {rule} is withdrawn, as the kernel that it makes fails: {why}", stage)
    return template


UNTRIED = "the budget was spent before it could be tried"
"""Why a branch without a measured template is given up."""


@dataclass(slots=True)
class TemplateDraft:
    """The template that a model writes for one branch. number: of the branch, from 1; answers: how many; answer, text,
    template, problem: of the last one (no template if it cannot be tried); history: all problems; taken: the id."""

    number: int
    branch: Branch
    question: ModelCall
    answers: int = 0
    text: str = ""
    answer: RewriteAnswer | None = None
    template: Template | None = None
    problem: Problem | None = None
    history: list[str] = field(default_factory=list)
    taken: str = ""

    @property
    def next_question(self) -> ModelCall:
        """The first question, or the next after the problem with the last answer."""
        if (problem := self.problem) is None:
            return self.question
        about = {"what": problem.what, "problem": problem.log, "advice": _PROBLEMS[problem.kind][1]}
        again = render("repair", parameters=self.branch.kind != "rewrite", **about)
        messages = (*self.question.messages, Message("assistant", self.text), Message("user", again))
        return replace(self.question, name=f"{self.question.name}-repair-{self.answers}", messages=messages)


def provide_templates(state: State, context: Context) -> tuple[State, events.TemplatesChosen]:
    """The role "template"."""
    plan, turn = Plan.model_validate(state["plan"]), state.get("turn", 0)
    chosen = _search_further(context, plan)
    if any(branch.written for branch in plan.branches):
        chosen += _written(context, plan, turn, state.get("objections", []) if turn else [])
    chosen = list(dict.fromkeys(chosen)) or _fallback_templates(context, plan)
    return {"templates": chosen, "objections": []}, events.TemplatesChosen(turn=turn, ids=tuple(chosen))


def _search_further(context: Context, plan: Plan) -> list[str]:
    """The known templates that the plan searches as they are, without excluded templates."""
    tree, chosen, stage = context.tree(), list[str](), stage_of(plan.round)
    for branch in plan.branches:
        if branch.written:
            continue
        node = tree.node(branch.parent)
        if node is None:
            known = ", ".join(one.id for one in tree.nodes) or "none"
            raise TunesmithError(f"The plan of round {plan.round} names the template '{branch.parent}', not {known}.")
        template, seeds, vetoed = node.template, branch.seeds, context.log.vetoed()
        if node.round == 0 and template.name == NAME and vetoed.get(template.id, WITHDRAWN) == WITHDRAWN:
            template = without_wrong_rules(context, template, stage)
            if not template.parameters:
                context.note("template", "No rule fits the kernel: `tunesmith space` says why.", stage)
        if template.id in vetoed:
            continue
        _register(context, template, Branch(parent=LIBRARY, kind="template"), stage)
        if template.id != node.id:
            # The searched template is another one than planned, and only its default is known to hold.
            seeds = ()
            veto = partial(events.TemplateVetoed, template=node.id, why=WITHDRAWN)
            context.once(events.TemplateVetoed, stage, veto, template=node.id)
        _register_seeds(context, template.id, seeds, stage)
        chosen.append(template.id)
    return chosen


def _fallback_templates(context: Context, plan: Plan) -> list[str]:
    """The template of a round whose planned ones cannot be used: the task's next unused one, else the best known."""
    tree, stage = context.tree(), stage_of(plan.round)
    known = tree.untried or [node for node in tree.ranked if node.template.has_choices]
    node = known[0] if known else None
    if node is None or not searches(context.settings):
        context.note("template", f"Round {plan.round} has no template to tune.", stage)
        return []
    _register(context, node.template, Branch(parent=LIBRARY, kind="template"), stage)
    sentence = f"None of the templates planned for round {plan.round} can be used; {node.id} takes its place."
    context.note("template", sentence, stage)
    return [node.id]


def _written(context: Context, plan: Plan, turn: int, objections: list[str]) -> list[str]:
    """The templates that a model writes for the plan, side by side, and repairs until each works or is given up."""
    stage, again = stage_of(plan.round), f"-turn-{turn + 1}" if turn else ""
    if context.models is None:
        raise TunesmithError(f"The plan of round {plan.round} wants new templates, and the run has no model.")
    # Entries of this turn must not change its questions when it is begun again.
    begun = (entry.sequence for entry in context.log.entries(events.WritingStarted, stage) if entry.event.turn == turn)
    tree = context.tree(before=next(begun, 0) or context.journal.append(events.WritingStarted(turn=turn), stage))
    drafts = []
    for number, branch in enumerate(plan.branches, 1):
        if branch.written:
            kind, schema = ("rewrite", RewriteAnswer) if branch.kind == "rewrite" else ("template", TemplateAnswer)
            messages = template_messages(context, plan, branch, tree, objections)
            question = ModelCall("template", stage, f"{kind}-{number}{again}", messages, schema)
            drafts.append(TemplateDraft(number, branch, question))
    waiting = drafts
    while waiting:
        answered = _ask(context, context.models, waiting, stage)
        # The defaults are measured together, as far as the budget allows.
        known, left = trials_of(context, stage), context.evaluations_left() if context.seconds_left() > 0 else 0
        read = {draft.template.id: draft.template for draft in answered if draft.template is not None}
        wanted = [template for name, template in read.items() if name not in known][: max(0, left)]
        trials = try_templates(context, wanted, stage)
        right = [one for one in read.values() if one.id in trials and trials[one.id].failure is None]
        examine(context, [(one, one.default_config, "") for one in right], stage=stage + TRIAL, brief=True)
        waiting = [draft for draft in answered if not _settled(context, draft, trials, stage)]
    return [draft.taken for draft in drafts if draft.taken]


def _ask(context: Context, models: Models, drafts: Sequence[TemplateDraft], stage: str) -> list[TemplateDraft]:
    """The drafts that the model answers, with the answer read; the others are given up."""
    context.listener(Progress("template", f"asking the model for {len(drafts)} template(s)"))
    known = {event.custom_id for event in context.log.events(events.ModelAsked)}
    asked: list[tuple[TemplateDraft, ModelCall]] = []
    for draft in drafts:
        # An answer that was paid for is read, even if its own trial took the last of the budget.
        may_be_tried = context.evaluations_left() > 0 and context.seconds_left() > 0
        if (call := draft.next_question).custom_id in known or may_be_tried:
            asked.append((draft, call))
        else:
            _give_up(context, draft, UNTRIED, stage)
    answered = []
    for (draft, _), reply in zip(asked, models.ask_all([call for _, call in asked]), strict=True):
        if isinstance(reply, ModelFailed):
            _give_up(context, draft, f"the model gives no template: {reply.detail}", stage, reply.kind)
            continue
        answer = reply.value
        assert isinstance(answer, RewriteAnswer)
        draft.answers, draft.text, draft.answer = draft.answers + 1, reply.text, answer
        read = read_answer(answer, context)
        draft.template, draft.problem = (None, read) if isinstance(read, Problem) else (read, None)
        answered.append(draft)
    return answered


def _settled(context: Context, draft: TemplateDraft, trials: Mapping[str, Evaluation], stage: str) -> bool:
    """Whether a draft is settled after its answer was read: it works and enters the tree, or is given up."""
    template, branch = draft.template, draft.branch
    if template is not None:
        if template.id not in trials:
            return _give_up(context, draft, UNTRIED, stage)
        draft.problem = problem_of(trials[template.id]) or _wrong_elsewhere(context, template)
        if draft.problem is None:
            added = [entry for entry in context.log.entries(events.TemplateAdded) if entry.event.id == template.id]
            mine = (stage, branch.parent, branch.kind)
            if added and (added[0].stage, added[0].event.parent, added[0].event.made_by) != mine:
                # Another branch of the run led to the same template.
                return _give_up(context, draft, f"the answer is {template.id} again", stage)
            _register(context, template, branch, stage, draft.answers)
            proposed = draft.answer.seeds if isinstance(draft.answer, TemplateAnswer) else ()
            _register_seeds(context, template.id, list(map(config_of, proposed)), stage)
            context.listener(Progress("template", f"{template.name} works after {draft.answers} answer(s)"))
            draft.taken = template.id
            return True
    assert draft.problem is not None, "without a template there is a problem"
    problem, sentence = draft.problem, draft.problem.in_short
    context.listener(Progress("template", f"answer {draft.answers} of template {draft.number}: {sentence[:300]}"))
    draft.history.append(f"{problem.kind}: {problem.what} {problem.log[:600]}")
    if draft.answers <= context.settings.repairs:
        return False
    return _give_up(context, draft, f"it does not work after {draft.answers} answer(s): {sentence[:400]}", stage)


def _register(context: Context, template: Template, branch: Branch, stage: str, answers: int = 0) -> None:
    """Adds the template of a branch to the tree, once. answers: of the model, until it worked."""
    if template.id not in context.log.templates:
        origin = {"parent": branch.parent, "moves": branch.moves, "made_by": branch.kind}
        context.journal.append(events.TemplateAdded(template=template, answers=answers, **origin), stage)


def _register_seeds(context: Context, template: str, seeds: Sequence[Config], stage: str) -> None:
    """Journals configurations to try first in this round's search, unless another branch of the template has them."""
    known = {config_key(config) for config in context.log.seeds(stage, template)}
    new = {key: config for config in seeds if (key := config_key(config)) not in known}
    if new:
        context.journal.append(events.SeedsProposed(template=template, configs=tuple(new.values())), stage)


def _give_up(context: Context, draft: TemplateDraft, why: str, stage: str, failure: str = "") -> bool:
    """Journals that a branch gets no template, and why; True. failure: the model's, where that is the reason."""
    branch = draft.branch
    event = events.BranchAbandoned(
        round=round_of(stage),
        branch=draft.number,
        parent=branch.parent,
        # The author of a whole kernel describes the attempt better than the plan.
        moves=(draft.answer.description[:400],) if draft.answer and branch.kind == "rewrite" else branch.moves,
        problem="\n".join(draft.history) or why,
        answers=draft.answers,
        made_by=branch.kind,
    )
    context.once(events.BranchAbandoned, stage, lambda: event, **dict(event))
    context.note("template", f"Template {draft.number} of the round is given up: {why}", stage, failure)
    return True


# The prompt

_TRAITS = (
    r"\b(?:__syncthreads|barrier|work_group_barrier)\s*\(",
    r"\b__shared__\b|\b__local\b|\blocal\s+\w|\b__shfl|\bsub_group_",
    r"\batom(?:ic)?[A-Z_]\w*\s*\(",
    r"\b(?:for|while)\s*\(",
    r"\b(?:native_|__|h|f)?(?:exp|log|sqrt|rsqrt|tanh|erf|sin|cos|pow)\w*\s*\(",
)
"""Patterns of barriers, shared memory, atomics, loops and functions beyond arithmetic in a source."""
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)

MAX_EXAMPLE = 12_000
"""Most characters of a template that serves as the example, some 4,000 tokens: the example is most of a prompt."""


def features(task: Task, backend: BackendName) -> tuple[float, ...]:
    """The features of `task`, of similar weight: how often its source has each trait, up to twice; the logarithm of
    elements written per element read, which is below 0 for a kernel that reduces."""
    source = _COMMENT.sub(" ", task.sources(backend).baseline.template.source)
    counts = {"in": 0, "out": 0, "inout": 0, "scalar": 0}
    for argument in task.arguments:
        counts[argument.role] += math.prod(task.shape_of(argument, task.workloads[0]))
    read, written = counts["in"] + counts["inout"], counts["out"] + counts["inout"]
    return (
        *(min(2, len(re.findall(pattern, source))) for pattern in _TRAITS),
        math.log(max(written, 1) / max(read, 1), 8),
    )


def example(task: Task, backend: BackendName) -> dict[str, Any] | None:
    """The library's task nearest to `task`, of another name, and its template; among equals the first by name."""
    own = features(task, backend)
    others = [pair for pair in _library(backend) if pair[0].name != task.name]
    if not others:
        return None
    shown, template = min(others, key=lambda pair: (math.dist(own, features(pair[0], backend)), pair[0].name))
    return {"name": shown.name, "summary": shown.summary, "source": template.source, "choices": choices(template)}


@cache
def _library(backend: BackendName) -> tuple[tuple[Task, Template], ...]:
    """Each task with its first template that is short enough."""
    pairs = []
    for task in map(read_task, library_tasks().values()):
        templates = task.sources(backend).templates if backend in task.backends else ()
        pairs += [(task, each) for each in templates if len(each.source) <= MAX_EXAMPLE][:1]
    return tuple(pairs)


_PARSER = Parser(Language(tree_sitter_cuda.language()))
_SENTENCE = re.compile(r".+?\.(?= [A-Z]|$)|.+")


@cache
def interface(header: str) -> tuple[str, str]:
    """A header of the kit: its contents in a sentence, and its declarations that comments document, without bodies,
    each below the first sentence of its comment."""
    source = kit()[header]
    about = " ".join(re.findall(r"^// (.*)", source.partition("\n\n")[0], re.MULTILINE))
    spaces = [node for node in _PARSER.parse(source.encode()).root_node.children if node.type == "namespace_definition"]
    return _SENTENCE.findall(about)[0], "\n".join(line for one in spaces for line in _declared(one.children[-1]))


def _declared(body: Node) -> Iterator[str]:
    """The lines of the documented members of a namespace or struct: a comment is about what follows, up to a gap."""
    comment, documented, end = list[str](), False, -1
    for node in body.named_children:
        text, follows = (node.text or b"").decode(), node.start_point[0] == end + 1
        if node.type == "comment":
            if node.start_point[0] > end:  # not behind a member
                comment = [*(comment if follows else ()), text.removeprefix("// ")]
        else:
            documented = follows and (documented or bool(comment)) and not node.type.startswith("preproc")
            if documented:
                yield from (f"// {one}" for one in _SENTENCE.findall(" ".join(comment))[:1])
                yield from _declaration(node)
            comment = []
        end = node.end_point[0] - (node.end_point[1] == 0)


def _declaration(node: Node) -> Iterator[str]:
    """The lines of a declaration, without bodies of functions and without undocumented members."""
    text, members = node.text or b"", list[str]()
    for body in reversed([*_bodies(node)]):
        text = text[: body.start_byte - node.start_byte] + text[body.end_byte - node.start_byte :]
        members += _declared(body) if body.type == "field_declaration_list" else ()
    head = re.sub(r"__(?:device|forceinline)__ ", "", " ".join(text.decode().split())).rstrip(" ;")
    yield head + (" {" if members else ";")
    yield from (f"    {line}" for line in members)
    yield from ["};"] * bool(members)


def _bodies(node: Node) -> Iterator[Node]:
    """Bodies and initialisers of functions, and of structs that have functions."""
    initialises = node.type in ("compound_statement", "field_initializer_list")
    if initialises or (node.type == "field_declaration_list" and b"(" in (node.text or b"")):
        yield node
    else:
        for one in node.children:
            yield from _bodies(one)


MAX_DESCRIPTION = 300
"""Characters of a kernel's own description in the history."""


def template_messages(
    context: Context, plan: Plan, branch: Branch, tree: Tree, objections: list[str]
) -> tuple[Message, ...]:
    """The prompt of one branch of a round, for a template or, in a rewrite, for a whole kernel."""
    facts = run_facts(context, tree, {plan.bottleneck})
    node, limits = tree.node(branch.parent), context.device.limits
    parameters, anew = branch.kind != "rewrite", branch.kind in ("template", "rewrite")
    # A template of this run shows the form of an answer, and also what matters for this task.
    own = [each for each in tree.ranked if each.template.has_choices]
    shown_by_parent = node is not None and node.template.has_choices
    sibling = own[0] if parameters and own and not shown_by_parent else None
    asked = {"task": facts["task"], "device": facts["device"], "parameters": parameters, "kind": branch.kind}
    language = {"types": sorted(context.task.types), "functions": [f"{name}()" for name in FUNCTIONS]}
    allowed = {"limits": limits, "headers": sorted(HEADERS), "folders": HEADER_FOLDERS}
    system = partial(render, "template_system", **asked, **language, **allowed)
    shown = example(context.task, limits.backend) if parameters and not shown_by_parent and not sibling else None
    with_kit = shown is not None and context.settings.kit and limits.backend == "cuda"
    user = render(
        "template",
        **facts,
        # A branch that keeps the parent's organisation needs no facts about the machine.
        parent=node_facts(context, node, source=True, machine=anew) if node is not None else None,
        sibling=node_facts(context, sibling, source=True) if sibling is not None else None,
        plan=plan,
        branch=branch,
        objections=objections,
        parameters=parameters,
        history=_history(tree, branch.parent) if anew else [],
    )
    return conversation(_with_kit(system, shown) if with_kit and shown else system(example=shown, kit=""), user)


GENERAL = ("kit/vectors.cuh", "kit/views.cuh", "kit/reduce.cuh", "kit/rows.cuh", "kit/tiles.cuh")
"""Headers of the kit that any kernel may need."""


def _with_kit(system: Callable[..., str], shown: dict[str, Any]) -> str:
    """The system's prompt with the kit in place of the example `shown`, and no longer: as far as there is room, headers
    by their interfaces, those that the example includes before the general ones, and others by a line."""
    # Without the blocks of the rules, which are for their templates alone.
    headers = {name: interface(name) for name in kit() if "namespace kit" in kit()[name]}
    room, known, made = len(system(example=shown, kit="")), dict[str, str](), ""
    for name in ("", *dict.fromkeys([*_included(shown["source"]), *GENERAL])):
        wider = known | ({name: headers[name][1]} if name else {})
        others = {one: about for one, (about, _) in headers.items() if one not in wider}
        text = system(example=None, kit=render("kit", shown=wider, others=others))
        if not name or len(text) <= room:
            known, made = wider, text
    return made


def _included(source: str) -> list[str]:
    """The headers of the kit that a source includes, each behind those that it includes itself."""
    names = re.findall(r'^#include "(kit/\w+\.cuh)"', source, re.MULTILINE)
    return [one for name in names for one in (*_included(kit()[name]), name)]


def _history(tree: Tree, parent: str) -> list[str]:
    """The results of all other kernels and templates, a line each, so that none of them is written again."""
    failures = {node.id: f"{REJECTED}, {node.rejected[0][1]}" for node in tree.nodes if node.rejected}
    measured = [
        f"round {node.round}, {node.made_by}: {' '.join(node.template.description.split())[:MAX_DESCRIPTION]}: "
        + (f"{1 / node.best:.3f}x the baseline's speed" if node.best else failures.get(node.id, "not measured"))
        for node in tree.nodes
        if node.round and node.id != parent
    ]
    failed = [
        f"round {each.round}, {each.made_by}: {'; '.join(each.moves)[:MAX_DESCRIPTION]}: {each.problem[:1500]}"
        for each in tree.attempts
    ]
    return [scrubbed(line) for line in measured + failed]
