"""The graph of langgraph.json, loaded and invoked as LangGraph's API does it (langgraph_api.graph.get_graph)."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from model_runs import LIBRARY, RAW, keys, simulation
from scripted_models import Scripted, branch, explain, plan, template

from tunesmith.graph.build import BUILT_IN
from tunesmith.graph.roles import RoleError

__all__ = ["simulation"]
REPOSITORY = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("simulation")


@pytest.fixture
def make_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    named = json.loads((REPOSITORY / "langgraph.json").read_text())
    path, _, function = named["graphs"]["tunesmith"].partition(":")
    specification = importlib.util.spec_from_file_location("studio_graph", REPOSITORY / path)
    assert specification is not None and specification.loader is not None and named["dependencies"] == ["."]
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
    return getattr(module, function)


def invoke(make_graph: Any, checkpointer: InMemorySaver, given: Any, **configurable: Any) -> tuple[list[str], Any]:
    """One request: the names of the nodes that worked, and the last state."""
    config = {"configurable": {"thread_id": "one", "backend": "opencl", "strategy": "random", **configurable}}

    async def request() -> tuple[list[str], Any]:
        async with make_graph(config) as made:
            graph, nodes, values = made.copy(update={"checkpointer": checkpointer}), [], {}
            async for mode, part in graph.astream(given, config, stream_mode=["tasks", "values"]):
                if mode == "values":
                    values = part
                elif "triggers" in part:
                    nodes.append(part["name"])
            return nodes, values

    return asyncio.run(request())


def test_without_a_task_it_is_drawn_and_says_what_it_needs(make_graph: Any) -> None:
    async def schemas() -> Any:
        async with make_graph({"configurable": {}}) as graph:
            return graph.get_graph(), graph.get_input_jsonschema(), graph.get_context_jsonschema()

    drawing, state, context = asyncio.run(schemas())
    assert set(BUILT_IN) <= set(drawing.nodes)
    assert state["properties"].keys() >= {"round", "plan", "templates"}
    assert context["properties"].keys() >= {"task", "backend"}
    with pytest.raises(RoleError, match='set "task"'):
        invoke(make_graph, InMemorySaver(), {"round": 0})


def test_a_thread_is_a_run_and_goes_on_where_it_was(make_graph: Any, simulation: list[Any]) -> None:
    settings = {"task": LIBRARY, "evaluations": 6, "rounds": 2}
    nodes, state = invoke(make_graph, InMemorySaver(), {"round": 0}, **settings)
    assert nodes == ["plan", "template", "tune", "test"] * 2 and state["done"] == "rounds"
    folder = Path("runs/studio-one")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["evaluations"] == len(keys(folder)) == 6 and summary["ended_by"] == "rounds"
    assert (folder / "report.html").is_file() and (folder / "best").is_dir()
    measured = len(simulation)
    nodes, state = invoke(make_graph, InMemorySaver(), {"round": 0}, **settings)
    assert len(simulation) == measured and state["done"] == "rounds", "a server that was restarted repeats nothing"


def test_a_plan_that_waits_is_an_interrupt(make_graph: Any) -> None:
    settings = {"task": LIBRARY, "evaluations": 6, "rounds": 1, "approve": "plans"}
    checkpointer = InMemorySaver()
    nodes, state = invoke(make_graph, checkpointer, {"round": 0}, **settings)
    assert nodes == ["plan", "approve"] and keys(Path("runs/studio-one")) == []
    changed = state["__interrupt__"][0].value["plan"] | {"evaluations": 3}
    nodes, state = invoke(make_graph, checkpointer, Command(resume=changed), **settings)
    assert nodes == ["approve", "template", "tune", "test"] and len(keys(Path("runs/studio-one"))) == 3
    invoke(make_graph, checkpointer, {"round": 0}, **settings, thread_id="two")
    invoke(make_graph, checkpointer, Command(resume=True), **settings, thread_id="two")
    assert len(keys(Path("runs/studio-two"))) == 6


def test_a_model_writes_and_explains(make_graph: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = {"plan": plan(branch(moves=["one"])), "template": template(), "explain": explain()}
    models = Scripted(lambda call: answers[call.role], tmp_path / "ledger")
    monkeypatch.setattr("tunesmith.graph.run.open_models", lambda *_: models)
    settings = {"task": RAW, "evaluations": 6, "rounds": 1, "model": "batch:answers"}
    nodes, state = invoke(make_graph, InMemorySaver(), {"round": 0}, **settings)
    assert nodes == ["plan", "template", "tune", "test", "explain"] and len(state["templates"]) == 1
