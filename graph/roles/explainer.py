"""The explainer: a few lines of the model about what a round has shown, which the next plan and the report read.

Nothing depends on it: without a model, or when the model fails, the run goes on.
"""

from __future__ import annotations

from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import Asked, Explained
from tunesmith.graph.journal.log import stage_of
from tunesmith.graph.models.calls import Call, Message, ModelFailed
from tunesmith.graph.progress import Progress
from tunesmith.graph.prompts import conversation, render
from tunesmith.graph.prompts.answers import ExplainAnswer
from tunesmith.graph.prompts.facts import node_facts
from tunesmith.graph.state import State

MAX_LINES, MAX_LINE = 5, 400


class Explainer:
    name = "explain"

    def __call__(self, state: State, context: Context) -> State:
        stage = stage_of(state["round"])
        if context.models is None or context.log.plan(stage) is None:
            return {}
        if context.log.entries(Explained, stage):
            return {}
        if done := state.get("done", ""):
            # The answer may take days, or never come.
            context.write_results(done)
        question = Call(self.name, stage, "explain", explain_messages(context, state), ExplainAnswer)
        (reply,) = context.models.ask_all([question])
        if isinstance(reply, ModelFailed):
            sentence = f"The model does not explain round {state['round']}: {reply.detail}"
            context.note(self.name, sentence, stage, reply.kind)
            return {}
        assert isinstance(reply.value, ExplainAnswer)
        lines = [line.strip()[:MAX_LINE] for line in reply.value.lines if line.strip()][:MAX_LINES]
        context.journal.append(Explained(lines=tuple(lines)), stage)
        for line in lines:
            context.listener(Progress(self.name, line))
        return {}


def explain_messages(context: Context, state: State) -> tuple[Message, ...]:
    """The explainer's prompt for the round of `state`; a function of the journal."""
    number = state["round"]
    stage = stage_of(number)
    tree = context.tree()
    ids = {event.template for event in context.log.events(Asked, stage)} | set(state.get("templates", []))
    user = render(
        "explain",
        round=number,
        plan=context.log.plan(stage),
        nodes=[node_facts(context, node, source=False) for node in tree.nodes if node.id in ids],
        attempts=[attempt for attempt in tree.attempts if attempt.round == number],
        verdict=context.log.verdict(stage),
        # Without a verdict either nothing was right in the search, or the test is left to a later round.
        right=any(node.best_seconds for node in tree.usable),
        tuned=[workload.name for workload in context.tuned],
    )
    return conversation(render("explain_system"), user)
