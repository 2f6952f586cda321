"""The templater: takes the templates that the plan names, and asks the model for those that it wants written.

All branches of a round go together: their templates in one turn, then what has to be repaired in the next, so that a
model that answers in batches needs few turns. A template is taken when its default configuration compiles and is right
on every workload; a branch that comes to nothing after `repairs` turns is given up. Where nothing is left, the
library's next template or the best known one takes the round; everything that fails has its sentence in the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import (
    BranchAbandoned,
    SeedsProposed,
    TemplateAdded,
    TemplatesChosen,
    WritingStarted,
)
from tunesmith.graph.journal.tree import LIBRARY
from tunesmith.graph.models.calls import Call, Message, ModelFailed, Models, Reply
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts import render
from tunesmith.graph.prompts.answers import TemplateAnswer, Unusable, config_of, template_of
from tunesmith.graph.prompts.template_prompt import template_messages
from tunesmith.graph.roles.templating.trial import Problem, infeasible, problem_of, recorded, try_templates
from tunesmith.graph.state import Branch, Plan, State
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.spec.parameter import Config
from tunesmith.kernels.spec.template import Template


class UnknownTemplate(TunesmithError):
    """The plan names a template that does not exist."""


@dataclass(slots=True)
class _Work:
    """One branch under way. messages: the conversation so far; attempt: turns it has had; answered: the template of the
    last answer, if it is one; problem: what is wrong with it."""

    number: int
    branch: Branch
    messages: tuple[Message, ...] = ()
    attempt: int = 0
    text: str = ""
    answered: Template | None = None
    seeds: tuple[Config, ...] = ()
    problem: Problem | None = None
    taken: bool = False
    failed: str = ""
    """Why the branch was given up."""
    history: list[str] = field(default_factory=list)

    @property
    def open(self) -> bool:
        return not self.taken and not self.failed


class Templater:
    name = "template"

    def __call__(self, state: State, context: Context) -> State:
        plan = Plan.model_validate(state["plan"])
        stage = f"round-{plan.round}"
        turn = context.log.sent_back(stage, self.name)
        chosen = context.log.chosen_templates(stage, turn)
        if chosen is not None:
            return _answer(chosen)
        objections = state.get("objections", []) if turn else []
        taken = self._search_further(context, plan, stage)
        works = [_Work(number, branch) for number, branch in enumerate(plan.branches, 1) if branch.moves]
        if works:
            assert context.models is not None, "only a model plans new templates"
            self._write(context, context.models, plan, works, stage, turn, objections)
            taken += [work.answered.id for work in works if work.taken and work.answered is not None]
        taken = list(dict.fromkeys(taken))
        if not taken:
            taken = self._fallback_templates(context, plan, stage)
        context.journal.append(TemplatesChosen(turn=turn, ids=tuple(taken)), stage)
        return _answer(taken)

    def _search_further(self, context: Context, plan: Plan, stage: str) -> list[str]:
        """The known templates that the plan searches as they are; those that a role has excluded are left out."""
        tree, chosen = context.tree(), []
        for branch in plan.branches:
            if branch.moves:
                continue
            node = tree.node(branch.parent)
            if node is None:
                known = ", ".join(one.id for one in tree.nodes) or "none"
                raise UnknownTemplate(
                    f"The plan of round {plan.round} names the template '{branch.parent}'; there are {known}."
                )
            if not node.vetoed:
                if node.round == 0:
                    _register(context, node.template, LIBRARY, (), stage)
                _register_seeds(context, node.id, branch.seeds, stage)
                chosen.append(node.id)
        return chosen

    def _write(
        self,
        context: Context,
        models: Models,
        plan: Plan,
        works: list[_Work],
        stage: str,
        turn: int,
        objections: list[str],
    ) -> None:
        # What this very turn adds to the tree must not change its questions when it is begun again.
        tree = context.tree(before=_begin(context, stage, turn))
        for work in works:
            work.messages = template_messages(context, plan, work.branch, tree, objections)
        while asking := [work for work in works if work.open]:
            context.listener(Progress("template", f"asking the model for {len(asking)} template(s)"))
            again = f"-turn-{turn + 1}" if turn else ""
            calls = [
                Call(self.name, stage, f"template-{work.number}{again}{_repair(work)}", _turns(work), TemplateAnswer)
                for work in asking
            ]
            for work, reply in zip(asking, models.ask_all(calls), strict=True):
                self._read(context, work, reply)
            self._try(context, [work for work in asking if work.open and work.problem is None], stage)
            for work in asking:
                self._judge(context, work, stage)

    def _read(self, context: Context, work: _Work, reply: Reply | ModelFailed) -> None:
        work.attempt += 1
        work.problem, work.answered = None, None
        if isinstance(reply, ModelFailed):
            work.failed = f"the model gives no template: {reply.detail}"
            return
        assert isinstance(reply.value, TemplateAnswer)
        work.text = reply.text
        try:
            work.answered = template_of(reply.value, context.task, context.device.limits.backend)
        except Unusable as error:
            work.problem = Problem("schema", "It is not a template that can be used.", str(error))
            return
        work.seeds = tuple(map(config_of, reply.value.seeds))
        work.problem = infeasible(work.answered, context)

    def _try(self, context: Context, works: list[_Work], stage: str) -> None:
        """Measures the defaults together, as far as the budget allows; those that it does not are given up."""
        known = recorded(context, stage)
        left = context.evaluations_left()
        templates: list[Template] = []
        for work in works:
            assert work.answered is not None
            if work.answered.id in known or any(work.answered.id == one.id for one in templates):
                continue
            if left > 0 and context.seconds_left() > 0:
                templates.append(work.answered)
                left -= 1
        known = try_templates(context, templates, stage)
        for work in works:
            assert work.answered is not None
            if work.answered.id in known:
                work.problem = problem_of(known[work.answered.id])
            else:
                work.failed = "the budget was spent before it could be tried"

    def _judge(self, context: Context, work: _Work, stage: str) -> None:
        """Takes, sends back or gives up."""
        if work.failed == "" and work.problem is None:
            assert work.answered is not None
            work.taken = True
            _register(context, work.answered, work.branch.parent, work.branch.moves, stage, work.attempt)
            _register_seeds(context, work.answered.id, work.seeds, stage)
            context.listener(Progress("template", f"{work.answered.name} works after {work.attempt} answer(s)"))
            return
        if work.problem is not None:
            work.history.append(f"{work.problem.kind}: {work.problem.what} {work.problem.log[:600]}")
            told = f"{work.problem.what} {work.problem.log.strip().splitlines()[0] if work.problem.log else ''}".strip()
            context.listener(Progress("template", f"answer {work.attempt} of template {work.number}: {told[:300]}"))
            if not work.failed and work.attempt > context.settings.repairs:
                work.failed = f"it does not work after {work.attempt} answer(s): {told[:400]}"
        if work.failed:
            _give_up(context, work, stage)

    def _fallback_templates(self, context: Context, plan: Plan, stage: str) -> list[str]:
        """What the round tunes when none of its planned templates can be: the task's next one that no round has used,
        else the best known one."""
        tree = context.tree()
        chosen = (tree.untried or tree.best(1))[:1]
        if not chosen:
            context.note("template", f"Round {plan.round} has no template to tune.", stage)
            return []
        if tree.untried:
            _register(context, chosen[0].template, LIBRARY, (), stage)
        sentence = f"None of the templates planned for round {plan.round} can be used; {chosen[0].id} takes its place."
        context.note("template", sentence, stage)
        return [chosen[0].id]


def _begin(context: Context, stage: str, turn: int) -> int:
    """The event with which this turn began, from whatever session."""
    started = context.log.writing_started(stage, turn)
    return context.journal.append(WritingStarted(turn=turn), stage) if started is None else started


def _answer(ids: Sequence[str]) -> State:
    return {"templates": list(ids), "objections": []}


def _repair(work: _Work) -> str:
    return f"-repair-{work.attempt}" if work.attempt else ""


def _turns(work: _Work) -> tuple[Message, ...]:
    """The first question, and after it the last answer only with what is wrong with it: earlier ones are superseded."""
    if work.problem is None:
        return work.messages
    text = render(
        "repair", parameters=True, what=work.problem.what, problem=work.problem.log, advice=work.problem.advice
    )
    return (*work.messages, Message("assistant", work.text), Message("user", text))


def _register(
    context: Context, template: Template, parent: str, moves: tuple[str, ...], stage: str, answers: int = 0
) -> None:
    """Puts a template into the tree, once. answers: how many the model needed for it."""
    if not context.log.has_template(template.id):
        context.journal.append(TemplateAdded(template=template, parent=parent, moves=moves, answers=answers), stage)


def _register_seeds(context: Context, template: str, seeds: Sequence[Config], stage: str) -> None:
    """Writes down configurations that the search of this round is to try first."""
    if seeds and all(event.template != template for event in context.log.events(SeedsProposed, stage)):
        context.journal.append(SeedsProposed(template=template, configs=tuple(seeds)), stage)


def _give_up(context: Context, work: _Work, stage: str) -> None:
    event = BranchAbandoned(
        branch=work.number,
        parent=work.branch.parent,
        moves=work.branch.moves,
        problem="\n".join(work.history) or work.failed,
    )
    if event not in context.log.events(BranchAbandoned, stage):
        context.journal.append(event, stage)
    context.note("template", f"Template {work.number} of the round is given up: {work.failed}", stage)
