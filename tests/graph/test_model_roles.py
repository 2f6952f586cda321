"""Planner and templater with a scripted model, on a simulated device and on a real one: what they take, repair
and give up."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from journal_rows import rows
from model_runs import DATA, LIBRARY, SOURCE, branch, go_on, keys, plan, run, template
from simulated_pool import SimulatedPool

from tunesmith.graph.context import Context
from tunesmith.graph.models.calls import ModelCall, ModelFailed
from tunesmith.graph.roles.templater import Problem, TemplateAnswer, problem_of, read_answer
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.outcome import CompileFailed, Evaluation
from tunesmith.kernels.spec.task import TaskError
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Template, config_key

pytestmark = pytest.mark.usefixtures("simulation")


def good(call: ModelCall) -> dict[str, Any]:
    return {"plan": plan(), "template": template()}[call.role]


def marked(mark: str, **fields: Any) -> dict[str, Any]:
    return template(source=f"// {mark}\n{SOURCE}", **fields)


def first_template(folder: Path) -> str:
    return Template.model_validate(rows(folder, "template")[0].data["template"]).id


def seed(*values: int) -> list[dict[str, Any]]:
    return [{"name": name, "value": at} for name, at in zip(("GROUP", "ITEMS", "UNROLL"), values, strict=True)]


def after(*templates: dict[str, Any]) -> Any:
    """A script whose templates come in this order; the last one for ever."""
    left = list(templates)

    def script(call: ModelCall) -> Any:
        if call.role == "template":
            return left.pop(0) if len(left) > 1 else left[0]
        return good(call)

    return script


def test_without_a_model_a_kernel_that_no_rule_fits_stays_and_an_odd_one_is_refused(tmp_path: Path) -> None:
    shutil.copytree(DATA / "raw_scale_add", tmp_path / "raw_scale_add")
    shutil.copytree(DATA / "scale_add", tmp_path / "scale_add")
    source, task = tmp_path / "scale_add" / "baseline.cl", str(tmp_path / "raw_scale_add" / "task.toml")
    plain = source.read_text()
    source.write_text(plain.replace("get_global_id(0)", "(get_global_id(0) % get_global_size(0))"))
    found = run(tmp_path / "alone", None, task=task)[0].summary
    assert found.general is not None and found.general.config == {} and found.evaluations == 1
    assert any("No rule fits the kernel" in one for one in found.notes)
    source.write_text(plain.replace("get_global_id(0)", "get_global_id(n - n)"))
    with pytest.raises(TaskError, match=r"has no opencl template, and the rules make none .*not a number") as error:
        run(tmp_path / "run", None, task=task)
    assert not hasattr(error.value, "__notes__"), "a traceback ends in the sentence"


def test_what_does_not_work_goes_back_with_the_reason_and_is_taken_when_it_does(tmp_path: Path) -> None:
    result, models = run(tmp_path / "run", after(marked("DOES_NOT_COMPILE"), marked("WRONG"), template()), rounds=1)
    assert result.valid
    asked = models.asked("template")
    assert [call.name for call in asked] == ["template-1", "template-1-repair-1", "template-1-repair-2"]
    repairs = [call.messages for call in asked[1:]]
    assert "undeclared identifier" not in repairs[0][-1].content and "error: undeclared\nmore" in repairs[0][-1].content
    assert "out[5] is 1, expected 2" in repairs[1][-1].content
    # Only the last answer is shown again, with what is wrong with it.
    assert [len(messages) for messages in repairs] == [4, 4]
    assert "WRONG" in repairs[1][-2].content and "DOES_NOT_COMPILE" not in repairs[1][-2].content
    found = rows(tmp_path / "run", "evaluation")
    trials = [event.data["evaluation"] for event in found if event.stage == "round-1-trial"]
    kinds = [trial["outcomes"]["16384"]["kind"] for trial in trials]
    assert kinds == ["compile_failed", "wrong_result", "measured"] and "5001" in trials[2]["outcomes"]
    assert result.summary["evaluations"] == 12
    (event,) = rows(tmp_path / "run", "template")
    assert event.data["answers"] == 3
    log = "clBuildProgram failed: BUILD_PROGRAM_FAILURE - built 1 time(s)\n\nruns:3:5: error: use of 'y'\n1 error"
    problem = problem_of(Evaluation("runs", {}, {"16384": CompileFailed("runs:3:5: error: use of 'y'", log)}))
    assert problem is not None and problem.log == log
    assert problem.in_short == "It does not compile with its default configuration. runs:3:5: error: use of 'y'"


def test_what_is_wrong_beside_the_task_s_own_data_goes_back_before_its_search(tmp_path: Path) -> None:
    """The author hears of it, the search does not meet it, and a run that is taken up does not examine it again."""
    default = {"GROUP": 16, "ITEMS": 1, "UNROLL": 0}
    SimulatedPool.wrong.append(default)

    def script(call: ModelCall) -> Any:
        if "repair" in call.name:
            if SimulatedPool.wrong:
                SimulatedPool.wrong.clear()
                raise KeyboardInterrupt
            return template(name="repaired", source=f"// repaired\n{SOURCE}")
        return good(call)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", script, rounds=1)
    assert SimulatedPool.examined == [config_key(default)]
    result, models = go_on(tmp_path / "run", script)
    assert result.summary.general is not None and SimulatedPool.examined[:2] == [config_key(default)] * 2
    (repair,) = models.asked("template")
    assert "wrong on other sizes or contents" in repair.messages[-1].content
    assert "it is wrong on odd sizes" in repair.messages[-1].content
    found = rows(tmp_path / "run", "examined")
    assert [(event.data["brief"], event.data["verdict"]) for event in found] == [
        (True, "rejected"), (True, "accepted"), (False, "accepted")
    ]  # fmt: skip
    assert all(one.template.startswith("repaired") for one in result.summary.examined)


def test_templates_are_searched_without_an_examination_that_fails(tmp_path: Path, monkeypatch: Any) -> None:
    whole = SimulatedPool.examine

    def examine(self: SimulatedPool, jobs: Any, *, brief: bool = False, **more: Any) -> Any:
        if brief:
            raise TunesmithError("The baseline is wrong there.")
        return whole(self, jobs, **more)

    monkeypatch.setattr(SimulatedPool, "examine", examine)
    result, _ = run(tmp_path / "run", good, rounds=1)
    assert result.valid
    wanted = "New templates are searched without an examination: The baseline is wrong there."
    assert wanted in result.summary.notes


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (template(source='#include "/etc/passwd"\n' + SOURCE), "#include of /etc/passwd"),
        (template(grid=["import os"]), "expression"),
        (template(parameters=[], constraints=[], grid=["n"], block=["1"]), "nothing to search"),
        (template(constraints=[{"expression": "GROUP > 64", "because": ""}]), "no feasible"),
        (template(constraints=[{"expression": "ITEMS > 1", "because": ""}]), "ITEMS > 1"),
        (template(parameters=[{"name": "A", "values": [1, 4], "default": 3, "doc": ""}]), "default"),
        (template(grid=["n // (GROUP - GROUP)"]), "zero"),
        (template(grid=["n / 7.5"]), "whole number"),
        (template(source="// nothing"), "parameter UNROLL: neither the source nor the launch uses it"),
    ],
)
def test_a_template_of_no_use_is_a_problem_before_it_is_tried(device: Any, answer: dict[str, Any], reason: str) -> None:
    task = load_task(LIBRARY)
    tuned, held_out = (task.workloads_for("cpu", held_out=held) for held in (False, True))
    context = SimpleNamespace(task=task, device=device, limits=(device.limits,), tuned=tuned, held_out=held_out)
    problem = read_answer(TemplateAnswer.model_validate(answer), cast(Context, context))
    assert isinstance(problem, Problem) and reason in problem.log


def test_repairs_are_bounded_and_the_next_plan_knows_what_never_worked(tmp_path: Path, simulation: list[Any]) -> None:
    answer = template(source='#include "/etc/passwd"\n' + SOURCE)
    result, models = run(tmp_path / "refused", after(answer), rounds=1, repairs=1)
    assert simulation == [] and not result.valid, "a template with a problem never reaches the device"
    assert [call.name for call in models.asked("template")] == ["template-1", "template-1-repair-1"]
    assert "#include of passwd" in models.asked("template")[1].messages[-1].content
    assert result.summary["sentence"] == "no configuration was measured."
    assert any("given up: it does not work after 2 answer(s)" in note for note in result.summary["notes"])
    assert [event.data["made_by"] for event in rows(tmp_path / "refused", "given_up")] == ["template"]

    def script(call: ModelCall) -> Any:
        return marked("WRONG") if call.role == "template" and call.stage == "round-1" else good(call)

    result, models = run(tmp_path / "run", script, rounds=2, repairs=2)
    names = [call.name for call in models.asked("template", "round-1")]
    assert names == ["template-1", "template-1-repair-1", "template-1-repair-2"]
    (second,) = models.asked("plan", "round-2")
    assert "Templates that never worked" in second.messages[1].content
    assert "out[5] is 1, expected 2" in second.messages[1].content
    assert result.valid and result.summary["evaluations"] <= 12, "the second round makes up for the first"


def test_several_templates_of_a_round_are_asked_for_and_repaired_together(tmp_path: Path) -> None:
    def script(call: ModelCall) -> Any:
        if call.role == "plan":
            return plan(branch(moves=["one"]), branch(moves=["two"]))
        if call.role == "template":
            mark = "" if "repair" in call.name else "// WRONG\n"
            return template(name=call.name.split("-")[1], source=mark + f"// {call.name[:10]}\n" + SOURCE)
        return good(call)

    result, models = run(tmp_path / "run", script, rounds=1, evaluations=24)
    assert [[call.name for call in turn] for turn in models.turns] == [
        ["plan"],
        ["template-1", "template-2"],
        ["template-1-repair-1", "template-2-repair-1"],
    ]
    assert len(result.summary["templates"]) == 2 and result.summary["evaluations"] == 24
    searched = rows(tmp_path / "run", "searched")[0].data
    assert [one["asked"] for one in searched["templates"]] and len(searched["templates"]) == 2
    assert min(one["asked"] for one in searched["templates"]) >= 5, "each has its share"
    assert len(set(keys(tmp_path / "run"))) == len(keys(tmp_path / "run")) == 24


def test_any_template_of_the_tree_can_be_branched_from(tmp_path: Path) -> None:
    def script(call: ModelCall) -> Any:
        number = int(call.stage.split("-")[1])
        if call.role == "plan" and number == 3:
            return plan(branch(parent=first_template(tmp_path / "run"), moves=["back to the first"]))
        return marked(f"round {number}", name=f"made{number}") if call.role == "template" else good(call)

    result, models = run(tmp_path / "run", script, rounds=3, evaluations=18, least_gain=0.0)
    lineage = {made["id"].split("-")[0]: made["parent"].split("-")[0] for made in result.summary["templates"]}
    assert lineage == {"made1": "baseline", "made2": "baseline", "made3": "made1"}
    prompt = models.asked("template", "round-3")[0].messages[1].content
    assert "The parent: made1" in prompt and "// round 1" in prompt and "back to the first" in prompt
    first, second, _ = (call.messages[1].content for call in models.asked("plan"))
    assert "Templates so far" not in first
    for shown in ("### made1-", "x the baseline's speed", "16384: "):
        assert shown in second.partition("## Templates so far")[2]
    finalists = {
        entry["template"].split("-")[0]
        for event in rows(tmp_path / "run", "comparison")[-1:]
        for entry in event.data["entries"]
    }
    assert len(finalists) > 1, "finalists come from all templates"


def test_a_template_may_be_searched_further_and_its_seeds_come_first(tmp_path: Path) -> None:
    def script(call: ModelCall) -> Any:
        if call.role == "plan" and call.stage == "round-2":
            # The first is infeasible.
            return plan(
                branch(parent=first_template(tmp_path / "run"), moves=[], seeds=[seed(3, 4, 1), seed(64, 4, 1)])
            )
        return template(seeds=[seed(4, 64, 0)]) if call.role == "template" else good(call)

    result, models = run(tmp_path / "run", script, rounds=2, evaluations=10)
    assert "round-2.template.template-1" not in models.paid
    asked = {
        stage: [event.data["config"] for event in rows(tmp_path / "run", "asked") if event.stage == stage]
        for stage in ("round-1", "round-2")
    }
    assert asked["round-1"][0] == {"GROUP": 4, "ITEMS": 64, "UNROLL": 0}
    assert asked["round-2"][0] == {"GROUP": 64, "ITEMS": 4, "UNROLL": 1}
    (refused,) = rows(tmp_path / "run", "refused_seeds")
    assert refused.data["refused"][0]["config"]["GROUP"] == 3 and "not among its" in refused.data["refused"][0]["why"]
    assert result.summary["evaluations"] == 10


def test_a_plan_that_names_what_is_not_there_goes_back_once(tmp_path: Path) -> None:
    def script(call: ModelCall) -> Any:
        return plan(branch(parent="../../etc"), workloads=["nowhere"]) if call.name == "plan" else good(call)

    result, models = run(tmp_path / "run", script, rounds=1)
    assert [call.name for call in models.asked("plan")] == ["plan", "plan-repair-1"]
    again = models.asked("plan")[1].messages[-1].content
    assert "There is no template '../../etc'" in again and "There is no tuned workload nowhere" in again
    assert result.valid


def test_when_the_model_fails_the_library_takes_the_round_or_the_run_ends_with_a_sentence(tmp_path: Path) -> None:
    def silent(call: ModelCall) -> Any:
        return ModelFailed("unauthorised", "the server does not accept the key")

    def plans_only(call: ModelCall) -> Any:
        return good(call) if call.role == "plan" else ModelFailed("server_error", "500")

    ruled, _ = run(tmp_path / "rules", None, task=LIBRARY, rounds=2)
    assert ruled.summary["models"] is None and not (tmp_path / "rules" / "transcripts").exists()
    assert 'id="models"' not in (tmp_path / "rules" / "report.html").read_text()
    result, _ = run(tmp_path / "run", silent, task=LIBRARY, rounds=2)
    assert result.valid and keys(tmp_path / "run") == keys(tmp_path / "rules")
    assert result.summary["general"] == ruled.summary["general"]
    why = "(the server does not accept the key); it is planned by rules."
    assert [note for note in result.summary["notes"] if "no plan for round" in note] == [
        f"The model gives no plan for round {number} {why}" for number in (1, 2)
    ]
    assert [made["parent"] for made in result.summary["templates"]] == ["library"]
    result, models = run(tmp_path / "planned", plans_only, task=LIBRARY, rounds=1)
    assert result.valid and [made["parent"] for made in result.summary["templates"]] == ["library"]
    assert any("takes its place" in note for note in result.summary["notes"])
    result, models = run(tmp_path / "raw", silent, rounds=3)
    assert not result.valid and result.summary["ended_by"] == "no template"
    assert result.summary["sentence"].startswith("No template was found: the task raw_scale_add brings no opencl")
    assert models.paid == ["round-1.plan.plan"]
    assert any("does not accept the key" in note for note in result.summary["notes"])


def test_with_a_model_a_run_ends_for_little_gain_but_not_for_an_exhausted_space(tmp_path: Path) -> None:
    def after_each(call: ModelCall) -> Any:
        return marked(call.stage) if call.role == "template" else good(call)

    result, _ = run(tmp_path / "more", after_each, rounds=2, evaluations=100)
    assert result.summary["ended_by"] == "rounds" and len(result.summary["templates"]) == 2
    result, _ = run(tmp_path / "little", after_each, rounds=4, evaluations=24, least_gain=0.9)
    assert result.summary["ended_by"] == "little gain" and len(result.summary["templates"]) == 2
