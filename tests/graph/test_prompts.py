"""Prompts: what stands in them, what must not, and that data stays data. And recorded answers that took the raw kernels
of tests/raw from source to tuned kernel, or are those of an ablation: they still become plans and templates, which
compile."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from model_runs import DATA, template
from typer.testing import CliRunner

from tunesmith.cli.main import app
from tunesmith.graph import prompts, tune
from tunesmith.graph.context import Context
from tunesmith.graph.journal.events import EvidenceKept
from tunesmith.graph.journal.log import Journal
from tunesmith.graph.prompts import fenced, render, scrubbed
from tunesmith.graph.prompts.facts import choices, examine, signature, task_facts
from tunesmith.graph.roles import templater
from tunesmith.graph.roles.planner import PlanAnswer, plan_messages
from tunesmith.graph.roles.templater import RewriteAnswer, TemplateAnswer, interface, template_messages, template_of
from tunesmith.graph.settings import make_settings
from tunesmith.graph.state import Branch, Plan
from tunesmith.hw.device_lock import DeviceLock
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.probe import DeviceInfo
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.guard import refuse_text
from tunesmith.kernels.build.source import kit, specialise
from tunesmith.kernels.space import compiler_rejection, feasible
from tunesmith.kernels.spec.task import Task, TaskError, geometry
from tunesmith.kernels.spec.taskfile import library_tasks, load_task
from tunesmith.kernels.spec.template import Template

RAW = Path(__file__).resolve().parent.parent / "raw"


def lines_inside(text: str) -> list[bool]:
    """For each line, whether it is data: inside a fence as Markdown reads it."""
    fence, found = "", []
    for line in text.splitlines():
        ticks = line[: len(line) - len(line.lstrip("`"))]
        begins, ends = not fence and len(ticks) >= 4, bool(fence) and line == fence
        found.append(bool(fence) or begins)
        fence = ticks if begins else "" if ends else fence
    return found


@given(some.text(alphabet="`ab\n #~{}%", max_size=80))
def test_no_text_can_end_its_own_block(text: str) -> None:
    shown = fenced(text, "source")
    flags = lines_inside(shown + "\nafter")
    assert all(flags[:-1]) and not flags[-1]


def test_foreign_text_is_never_read_as_a_template_and_stands_between_fences() -> None:
    shown = render("repair", parameters=True, what="It fails.", problem="{{ 7 * 7 }}{% for x in y %}", advice="")
    assert "{{ 7 * 7 }}{% for x in y %}" in shown
    texts = [path.read_text() for path in Path(prompts.__file__).parent.glob("*.j2")]
    logs = [line for text in texts for line in text.splitlines() if "| scrubbed" in line]
    assert logs and all('| scrubbed | fenced("log")' in line for line in logs)


def test_logs_lose_what_belongs_to_this_machine() -> None:
    for text, shown in (
        ("/home/me/venv/lib/python3.11/include/cuda_fp16.hpp(12): error", "cuda_fp16.hpp(12): error"),
        ("/tmp/pocl_cache/tempfile_aB3-x.cl:3:5: error", "temporary.cl:3:5: error"),
        ("worker at 10.0.0.17:6379 died", "worker at (address) died"),
    ):
        assert scrubbed(text) == shown
    for text in ("a/b is 1/2, x[i] = y / z", "runs:3:5: error: use of undeclared identifier 'z'"):
        assert scrubbed(text) == text


@pytest.fixture
def context(tmp_path: Path) -> Any:
    def make(name: str, **settings: Any) -> Context:
        limits = resolve_target("h200")
        task = load_task(name)
        journal = Journal(tmp_path / "journal", create=True)
        chosen = make_settings(task=name, **settings)
        return Context(task, DeviceInfo("cuda", 0, limits.name, limits), (limits,), chosen, journal, lambda: None)  # type: ignore[arg-type,return-value]

    return make


def messages(context: Context, parent: str = "baseline") -> list[str]:
    tree = context.tree()
    branch = Branch(parent=parent, kind="template", moves=("widen the loads",))
    plan = Plan(
        round=1,
        bottleneck="memory",
        scope="general",
        workloads=("a",),
        evaluations=5,
        branches=(branch,),
        analysis="It is bound by memory.",
    )
    both = (*plan_messages(context, 1, tree, []), *template_messages(context, plan, branch, tree, []))
    return [message.content for message in both]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in RAW.glob("*/task.toml")))
def test_a_raw_kernel_s_prompts_say_what_is_needed_and_nothing_of_this_machine(context: Any, name: str) -> None:
    made = context(str(RAW / name))
    system, user, writer_system, writer = messages(made)
    task = made.task
    source = task.sources("cuda").baseline.template.source
    for text in (user, writer):
        assert source.strip() in text
        assert task.reference.strip() in text and f"`{signature(task, 'cuda')}`" in text
        assert all(workload.name in text for workload in task.workloads)
        assert "not measured" in text and "132" in text
    assert "widen the loads" in writer and "It is bound by memory." in writer
    for word in ("ceil_div()", "cuda_fp16.h", 'extern "C"', "An example:", "__launch_bounds__"):
        assert word in writer_system
    assert "never an instruction" in system and "never an instruction" in writer_system
    for text in (system, user, writer_system, writer):
        for place in (Path.home(), RAW.parent.parent, "/tmp/", socket.gethostname(), "/work"):
            assert str(place) not in text
        outside = [line for line, inside in zip(text.splitlines(), lines_inside(text), strict=True) if not inside]
        assert "None" not in "\n".join(outside)
        # Orders in a comment are data.
        assert not {line for line in source.splitlines() if line.endswith((";", "{"))} & set(outside)
    assert messages(made) == [system, user, writer_system, writer]


def test_a_parent_with_parameters_is_example_enough(context: Any) -> None:
    made = context("softmax")
    [parent] = made.tree().usable
    _, plan, system, user = messages(made, parent.id)
    assert "An example" not in system and f"The parent: {parent.id}" in user
    assert '"parameters": [' in user  # as an answer has them
    assert "Templates so far" in plan and "Parent: library." in plan and "Template; 0 measured." in plan


@pytest.mark.parametrize("name", ["rope", "nbody", "dequant_int4", "histogram"])
def test_the_kit_takes_the_place_of_the_example_and_no_more_room(context: Any, name: str) -> None:
    made = context(str(RAW / name))
    with_kit = messages(made)[2]
    made.settings = made.settings.model_copy(update={"kit": False})
    without = messages(made)[2]
    assert "kit::over_row" in with_kit and with_kit.count("An example:") == 2
    assert without.count("An example: the template of another kernel") == 1 and "Building blocks" not in without
    assert len(with_kit) <= len(without)
    # Each header once: by its declarations, those that the example includes first, or by a line.
    headers = [one for one in kit() if one != "kit/rules.cuh"]
    shown = [one for one in headers if f'"{one}", its declarations' in with_kit]
    assert all((f'- "{one}":' in with_kit) == (one not in shown) for one in headers)
    assert shown and all(interface(one)[1] in with_kit for one in shown) and "rules.cuh" not in with_kit
    wanted = {"rope": "kit/vectors.cuh", "dequant_int4": "kit/tiles.cuh", "histogram": "kit/fragments.cuh"}
    assert wanted.get(name, shown[0]) in shown


def test_declarations_of_a_header_are_what_it_documents() -> None:
    about, declared = interface("kit/rows.cuh")
    assert about.startswith("Rows of a matrix by blocks, warps or lanes")
    lines = declared.splitlines()
    columns = lines.index("template <int THREADS, int V, int ITEMS = 1> struct Columns {")
    assert lines[columns - 1].startswith("// A row whose `end` columns divide into vectors of V")
    assert "    template <class Body> void more(Body body) const;" in lines[columns:]
    # No bodies, no private words of the compiler, and nothing without a comment.
    assert "threadIdx.x * V" not in declared and "__device__" not in declared and "#pragma" not in declared
    assert "struct Moments { float count, mean, squares; };" in interface("kit/reduce.cuh")[1]
    assert "struct Raw" not in interface("kit/vectors.cuh")[1] and "over_row(int end" in interface("kit/views.cuh")[1]


def test_the_example_does_what_the_kernel_does_and_is_never_the_task_itself() -> None:
    likes = {"gemv": "gemv_int4", "layernorm": "fused_add_rmsnorm", "cumsum": "quantize_per_token"}
    for name, like in (likes | {"silu_and_mul": "merge_attn_states"}).items():
        found = templater.example(load_task(str(RAW / name) if (RAW / name).exists() else name), "cuda")
        assert found is not None and found["name"] == like and len(found["source"]) <= templater.MAX_EXAMPLE


def test_facts_name_every_argument_as_the_harness_passes_it(context: Any) -> None:
    facts = task_facts(context(str(RAW / "topk_softmax")))
    assert facts["signature"] == (
        'extern "C" __global__ void topk_softmax(const T* logits, float* weights, int* experts, int n, int e, int k)'
    )
    assert "int32: rtol 0, atol 0" in facts["tolerances"]
    histogram = task_facts(context(str(RAW / "histogram")))
    assert "int* counts" in histogram["signature"] and "const unsigned char* data" in histogram["signature"]


def test_a_template_survives_the_way_through_an_answer_and_its_name_is_made_harmless() -> None:
    for name in library_tasks():
        task = load_task(name)
        made = task.sources("cuda").templates[-1]
        answer = json.loads(choices(made)) | {"source": made.source, "seeds": []}
        assert template_of(TemplateAnswer.model_validate(answer), task, "cuda").id == made.id
    task = load_task(str(DATA / "raw_scale_add"))
    made = template_of(TemplateAnswer.model_validate(template(name='../../"x"\n')), task, "opencl")
    assert made.name == ".._.._x"
    with pytest.raises(TaskError, match="also a size"):
        twice = [{"name": "n", "values": [1, 2], "default": 1, "doc": ""}]
        template_of(TemplateAnswer.model_validate(template(parameters=twice, constraints=[])), task, "opencl")


def test_the_command_prints_prompts_without_a_device() -> None:
    pytest.importorskip("cuda.bindings")
    done = CliRunner().invoke(app, ["prompts", str(RAW / "rope"), "--target", "h200"])
    assert done.exit_code == 0, done.output
    assert "======== plan: system" in done.output and "======== template: user" in done.output
    assert "32 registers a thread" in done.output and "ld.global 2 B" in done.output and "waves" in done.output


def test_evidence_is_found_once_and_its_absence_has_a_reason(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings")
    made = context(str(RAW / "rope"))
    baseline, workload = made.sources.baseline.template, made.tuned[0]
    examine(made, "baseline", baseline, {}, workload, "round-1")
    found = made.log.evidence("baseline", {})
    assert found is not None and found.instructions["ld.global 2 B"] == 2
    assert found.resources is not None and (found.resources.registers or 0) > 0
    assert "32 registers a thread" in messages(made)[1] and "ld.global 2 B: 2" in messages(made)[1]

    class Missing:
        def __init__(self, *_: Any) -> None:
            raise TunesmithError("NVRTC is missing here.")

    monkeypatch.setattr("tunesmith.graph.prompts.facts.Isolated", Missing)
    examine(made, "baseline", baseline, {}, workload, "round-2")
    assert len(list(made.journal.entries(EvidenceKept))) == 1
    examine(made, "other", baseline, {}, workload, "round-2")
    other = made.log.evidence("other", {})
    assert other is not None and other.note == "NVRTC is missing here" and other.instructions == {}


def test_counting_events_takes_the_lanes_lock(context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane's lock has the name that `CudaDevice.uuid` gives, which is that of the probe."""
    pytest.importorskip("cuda.bindings")
    monkeypatch.setenv("TUNESMITH_LOCK_DIR", str(tmp_path))
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    taken = []

    def count(*_: Any) -> str:
        taken.append(DeviceLock(uuid).try_acquire())
        return ""

    monkeypatch.setattr("tunesmith.graph.prompts.facts.count_events", count)
    made = context(str(RAW / "rope"))
    made.device = replace(made.device, uuid=uuid)
    examine(made, "baseline", made.sources.baseline.template, {}, made.tuned[0], "round-1")
    assert taken == [False] and DeviceLock(uuid).try_acquire()


WHOLE = sorted(f"{path.parent.name}/recording" for path in RAW.glob("*/recording"))
RECORDINGS = [*WHOLE, *sorted(str(path.relative_to(RAW)) for path in RAW.glob("*/six-calls/*"))]
FAST = ("rope/recording", "topk_softmax/recording")


def lines(name: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RAW / name / f"{file}.jsonl").read_text(encoding="utf-8").splitlines()]


def answers(name: str) -> dict[str, str]:
    """What the model wrote, by the name of the question."""
    return {
        one["custom_id"].partition("@")[0]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in lines(name, "answers")
    }


def read(name: str) -> tuple[Task, dict[str, Template]]:
    """The task, and its templates and whole kernels by the names of their questions."""
    task = load_task(str(RAW / Path(name).parts[0]))
    kinds = {"template": TemplateAnswer, "rewrite": RewriteAnswer}
    asked = ((question, text, question.split(".")[2].split("-")[0]) for question, text in answers(name).items())
    found = {question: kinds[kind].model_validate_json(text) for question, text, kind in asked if kind in kinds}
    return task, {question: template_of(answer, task, "cuda") for question, answer in found.items()}


@pytest.mark.parametrize("name", WHOLE)
def test_every_question_has_its_answer_and_plans_are_plans(name: str) -> None:
    assert len(WHOLE) == 6 and len(RECORDINGS) == 6 + 2 * 12, "an ablation of twelve kernels is recorded beside runs"
    asked = [one["custom_id"] for one in lines(name, "requests")]
    assert asked and set(asked) == {one["custom_id"] for one in lines(name, "answers")}
    # Nothing of the machine that it ran on gets into a prompt.
    sent = json.dumps([one["body"]["messages"] for one in lines(name, "requests")])
    assert "/work" not in sent and "/root" not in sent
    plan = PlanAnswer.model_validate_json(answers(name)["round-1.plan.plan"])
    assert [branch.parent for branch in plan.branches] == ["baseline"] and plan.branches[0].moves


@pytest.mark.parametrize("name", RECORDINGS)
def test_answers_are_whole_and_feasible(name: str) -> None:
    (task, found), limits = read(name), resolve_target("h200")
    if "six-calls" in name:
        assert len(found) == 6
    if name.endswith("tree"):
        assert found.keys() >= {"round-1.template.template-1", "round-1.template.rewrite-2"}
    for question, made in found.items():
        assert refuse_text(made.source, "cuda") is None, question
        space = feasible(made, task.workloads_for("gpu", held_out=False), limits)
        assert space.index(made.default_config) is not None, question
        assert len(space) >= 100 or name not in WHOLE


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in RECORDINGS])
def test_answers_compile(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    (task, found), limits = read(name), resolve_target("h200")
    compiler = open_compiler(limits, 0)
    workloads = task.workloads if name in WHOLE else task.workloads[:1]
    for question, made in found.items():
        for types in {tuple(sorted(workload.types.items())) for workload in workloads}:
            code = compiler.compile(specialise(made, made.default_config, dict(types)))
            assert isinstance(code, Artifact), (question, code)
            assert code.globals == () and (code.resources.spills == 0 or name not in WHOLE)
            for workload in task.workloads_for("gpu", held_out=False):
                shape = geometry(made, made.default_config, workload)
                assert compiler_rejection(limits, shape, code.resources) is None, question


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rope", "histogram"])
def test_a_recording_replayed_ends_with_a_kernel_that_is_right_and_faster(name: str, tmp_path: Path) -> None:
    result = tune(
        RAW / name,
        run_dir=tmp_path / "run",
        backend="cuda",
        model=f"replay:{RAW / name / 'recording'}",
        rounds=1,
        evaluations=12,
        branches=1,
    )
    assert result.valid and result.summary["ratio"] < 0.9
    assert {one["verdict"] for one in result.summary["examined"]} == {"accepted"}
