"""What the documentation shows, as a reader saves it: the role of docs/extending.md, its placement, and what is
refused; the task that docs/tasks.md builds; the program of docs/using.md."""

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from journal_rows import rows
from langgraph.types import Command
from model_runs import LIBRARY, RAW, SOURCE, branch, plan, run, template
from simulated_pool import simulate_device

from tunesmith.cli.main import main
from tunesmith.graph.build import BUILT_IN, load_roles, place
from tunesmith.graph.models.calls import ModelCall
from tunesmith.graph.roles import REGISTERED, register
from tunesmith.graph.run import tune
from tunesmith.graph.settings import Placement
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.space import feasible
from tunesmith.kernels.spec.task import Task
from tunesmith.kernels.spec.taskfile import load_task

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """A block of code of the page."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if containing in text]
    assert len(found) == 1
    return found[0]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's package as an installer leaves it (PyPA, "Recording installed projects"): not every environment here
    has an installer."""
    target = tmp_path_factory.mktemp("installed")
    (target / "tunesmith_reviewer.py").write_text(block("python", "class Reviewer"))
    project = tomllib.loads(block("toml", "entry-points"))["project"]
    info = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return target


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(package))
    importlib.invalidate_caches()
    return package


def names(chain: dict[str, str]) -> list[str]:
    roles: dict[str, Any] = {name: object() for name in (*BUILT_IN, *chain)}
    return place(roles, {name: Placement(after=after) for name, after in chain.items()})


class TestPlacing:
    def test_roles_have_places_or_a_sentence_says_why_not(self, tmp_path: Path, monkeypatch: Any) -> None:
        assert names({}) == ["plan", "approve", "template", "tune", "test"]
        assert names({"a": "test"}) == ["plan", "approve", "template", "tune", "test", "a"]
        assert names({"a": "b", "b": "test"})[-2:] == ["b", "a"]
        assert names({"a": "plan", "b": "plan"})[:3] == ["plan", "a", "b"]
        for chain, sentence in (
            ({"a": "nowhere"}, 'after = "nowhere" leads to no role that has a place: name one of plan'),
            ({"a": "b", "b": "a"}, 'after = "b" leads to no role'),
            ({"plan": "test"}, "has its place already"),
        ):
            with pytest.raises(TunesmithError, match=sentence):
                names(chain)
        with pytest.raises(TunesmithError, match="no role of this name is registered"):
            run(tmp_path / "run", None, task=LIBRARY, roles={"ghost": {"after": "test"}})
        assert not (tmp_path / "run").exists()
        info = tmp_path / "broken-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[tunesmith.roles]\nbroken = no_such_module:Role\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(TunesmithError, match="The role broken of broken cannot be loaded from no_such_module:Role"):
            load_roles()


def test_the_command_draws_the_roles_of_a_settings_file(installed: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "run.toml").write_text(block("toml", "[roles.reviewer]"))
    with pytest.raises(SystemExit):
        main(["graph", "--settings", str(tmp_path / "run.toml")])
    drawing = capsys.readouterr().out
    assert "graph TD" in drawing and "template -.-> reviewer" in drawing
    assert all(f"reviewer -.-> {name}" in drawing for name in ("tune", "template", "plan"))


def registered(name: str, act: Callable[[Any, Any], Any]) -> None:
    """Registers a role of this name that does `act`."""
    register(type("Role", (), {"name": name, "__call__": lambda self, state, context: act(state, context)}))


@pytest.mark.usefixtures("simulation")
class TestReviewer:
    roles = {"reviewer": {"after": "template"}}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def no_other_roles(self) -> Iterator[None]:
        with patch.dict(REGISTERED, clear=True):
            yield

    def test_a_vetoed_template_is_not_tuned_and_the_next_plan_knows(self, installed: Path, tmp_path: Path) -> None:
        def script(call: ModelCall) -> Any:
            if call.role == "plan":
                return plan(branch(moves=["one"]), branch(moves=["two"]))
            risky = "// asm\n" if call.name == "template-1" else ""
            return template(name=call.name, source=f"{risky}// {call.stage}\n{SOURCE}")

        result, models = self.reviewed(tmp_path, script, rounds=2, evaluations=20)
        vetoed = [made for made in result.summary["templates"] if made["vetoed"]]
        assert len(vetoed) == 2 and all(made["evaluations"] == 1 for made in vetoed), "only its trial was measured"
        assert vetoed[0]["vetoed"] == "inline assembly is not portable"
        second = models.asked("plan", "round-2")[0].messages[1].content
        assert "vetoed: inline assembly is not portable" in second
        assert result.valid and result.summary["general"]["template"].startswith("template-2")

    def reviewed(self, tmp_path: Path, script: Any, **settings: Any) -> tuple[Any, Any]:
        return run(tmp_path / "run", script, roles=self.roles, **settings)

    def test_it_sends_the_state_back_with_its_objections_a_few_times(self, installed: Path, tmp_path: Path) -> None:
        def script(call: ModelCall) -> Any:
            asm = f"// asm in {call.name}\n" if never or "turn" not in call.name else ""
            return plan() if call.role == "plan" else template(source=asm + SOURCE)

        never = True
        result, models = self.reviewed(tmp_path, script, rounds=1, repairs=2)
        again = models.asked("template")
        assert [call.name for call in again] == ["template-1", "template-1-turn-2", "template-1-turn-3"]
        assert "An earlier template was refused" in again[1].messages[1].content
        assert "inline assembly is not portable" in again[1].messages[1].content
        assert not result.valid and result.summary["ended_by"] == "rounds"
        assert len([made for made in result.summary["templates"] if made["vetoed"]]) == 3
        # What it accepts the second time is tuned.
        never = False
        result, _ = self.reviewed(tmp_path / "accepted", script, rounds=1)
        assert result.valid and result.summary["evaluations"] == 12
        steps = [event.data for event in rows(result.folder, "step") if event.data["role"] == "reviewer"]
        assert [step["goto"] for step in steps] == ["template", "tune"]

    def test_a_role_registered_in_one_line(self, tmp_path: Path) -> None:
        seen = []

        def witness(state: Any, context: Any) -> Any:
            seen.append((state["round"], context.log.verdict() is not None))
            return {}

        registered("witness", witness)
        result, _ = run(tmp_path / "run", None, task=LIBRARY, rounds=2, roles={"witness": {"after": "test"}})
        assert seen == [(1, True), (2, True)] and result.valid
        with pytest.raises(TunesmithError, match="has no `name`"):
            register(type("Nameless", (), {}))

    def test_a_role_cannot_send_the_state_anywhere_nor_for_ever(self, tmp_path: Path) -> None:
        registered("back", lambda state, context: Command(goto=goto, update={"objections": ["another one"]}))
        searched = "role back sends round 1 back to template when it was searched already"
        for goto, after, sentence in (
            ("nowhere", "test", "role back sends the state to 'nowhere'; it may be sent back to plan or template"),
            ("template", "tune", searched),
            ("template", "test", searched),
        ):
            with pytest.raises(TunesmithError, match=sentence):
                run(tmp_path / f"{goto}-{after}", None, task=LIBRARY, rounds=2, roles={"back": {"after": after}})

        def script(call: ModelCall) -> Any:
            return {"plan": plan(), "template": template()}[call.role]

        registered("never", lambda state, context: Command(goto="plan", update={"objections": ["not this one"]}))
        result, models = run(tmp_path / "run", script, task=RAW, rounds=3, roles={"never": {"after": "approve"}})
        assert not result.valid and result.summary["ended_by"] == "rounds"
        assert [call.role for call in models.asked()] == ["plan", "plan", "plan"]
        assert "not this one" in models.asked()[1].messages[1].content


def blocks(page: str) -> list[str]:
    return re.findall(r"```\w+\n(.*?)```", (REPOSITORY / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)


FIRST = ("kernel.cl", "reference.py", "template.toml", "task.toml")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("first")
    for name, text in zip(FIRST, blocks("tasks.md"), strict=False):
        (folder / name).write_text(text)
    return load_task(str(folder))


def test_the_tasks_of_the_page_are_right(first: Task, device: Any, task: Task) -> None:
    sources, compiler = first.sources("opencl"), open_compiler(device.limits, device.index)
    assert len(feasible(sources.templates[0], first.workloads, device.limits)) == 10
    for one, config in ((sources.baseline.template, {}), (sources.templates[0], {"GROUP": 16, "COLUMNS": 4})):
        assert isinstance(compiler.compile(specialise(one, config, {})), Artifact)
    pytest.importorskip("cuda.bindings.nvrtc")
    compiler, sources = open_compiler(resolve_target("h200")), task.sources("cuda")
    for one, config in ((sources.baseline.template, {}), (sources.templates[0], {"BLOCK": 128, "VEC": 4})):
        for dtype in task.types["T"]:
            found = compiler.compile(specialise(one, config, {"T": dtype}))
            assert isinstance(found, Artifact), found
    template, limits = task.sources("opencl").templates[0], resolve_target("h200")
    assert [len(feasible(template, [one], limits)) for one in task.workloads] == [15, 10]


@pytest.mark.slow
def test_the_first_task_wins(first: Task, device: Any, ray_cluster: Any, tmp_path: Path) -> None:
    found = tune(first, run_dir=tmp_path / "run", rounds=1, wisdom=False).summary
    assert found.ratio is not None and found.ratio < 0.5


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("scale")
    sources = [f"{name}.{end}" for end in ("cu", "cl") for name in ("baseline", "template")]
    names = ["task.toml", "reference.py", *sources, "template.cuda.toml"]
    for name, text in zip(names, blocks("tasks.md")[len(FIRST) :], strict=True):
        (folder / name).write_text(text)
    template = (folder / "template.cuda.toml").read_text()
    (folder / "template.opencl.toml").write_text(template.replace("template.cu", "template.cl"))
    return load_task(str(folder))


def test_an_export_tells_shapes_and_the_page_runs_it(task: Task, device: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Of a run that found one configuration for all shapes, and another for the tuned one."""
    times = {"{'BLOCK': 64, 'VEC': 4}": 5e-6, "{'BLOCK': 256, 'VEC': 8}": 4e-6, "{}": 20e-6}
    simulate_device(monkeypatch)
    monkeypatch.setattr("simulated_pool.seconds", lambda config, workload: times.get(str(config), 9e-6))
    found = tune(task, run_dir=tmp_path / "run", backend="opencl", strategy="exhaustive", rounds=1)
    best = found.folder / "best"
    general = json.loads((best / "general" / "launch.json").read_text())
    assert general["launch"] == {"grid": ["ceil_div(n, BLOCK * VEC)"], "block": ["BLOCK"], "shared_bytes": "0"}
    assert [(one["types"], one["source"]) for one in general["sources"]] == [
        ({"T": "float16"}, "kernel-float16.cl"),
        ({"T": "float32"}, "kernel-float32.cl"),
    ]
    rows = json.loads((best / "dispatch.json").read_text())["shapes"]
    assert [(row["sizes"], row["types"], row["folder"]) for row in rows] == [
        ({"n": 1048576}, {"T": "float16"}, "1048576"),
        ({"n": 1000003}, {"T": "float32"}, "general"),
    ]
    # PoCL on processors newer than itself needs help, which is no matter of the page.
    known = (
        "import pyopencl\nfrom tunesmith.kernels.backends.opencl import name_processor\n"
        "for platform in pyopencl.get_platforms():\n"
        "    for one in platform.get_devices():\n        name_processor(one)\n"
    )
    (tmp_path / "use.py").write_text(known + blocks("using.md")[0])
    run = [sys.executable, str(tmp_path / "use.py"), str(best)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "right {'BLOCK': 64, 'VEC': 4}\n"), done.stderr


def test_a_figure_that_the_results_of_its_section_do_not_have_is_found() -> None:
    """As `make docs` finds it in a page."""
    spec = importlib.util.spec_from_file_location("figures", REPOSITORY / "docs" / "figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    section = "## Runs\n\n`h200-whole-runs.json`: {} times as fast in 59 s, `0.123` in code.\n"
    assert figures.unfounded(section.format("1.25")) == [] and figures.unfounded(section.format("1.26")) == ["1.26"]
    assert figures.unfounded("## Other\n\n1.26 times as fast.\n" + section.format("5.52")) == []
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    assert not [(page.name, wrong) for page in pages if (wrong := figures.unfounded(page.read_text("utf-8")))]
