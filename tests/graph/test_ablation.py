"""Ablations: the arms and their equal budgets, the figures, and that no work is done twice."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from journal_rows import Killed, rows
from model_runs import RAW, SOURCE, Script, Scripted, branch, plan, rewrite, template

from tunesmith.cli.commands.studies import print_ablation
from tunesmith.graph.models.calls import ModelCall, ModelFailed, Waiting
from tunesmith.graph.roles.templater import RewriteAnswer
from tunesmith.graph.study.ablation import Repeat, ablate, compare, over_tasks
from tunesmith.hw.errors import TunesmithError

CALLS = 6


class Capped(Scripted):
    """No more than CALLS paid answers, as a cap on calls does it."""

    def __init__(self, script: Script, ledger: Path) -> None:
        def bounded(call: ModelCall) -> Any:
            return script(call) if len(self.paid) < CALLS else ModelFailed("capped", "the cap on calls is reached")

        super().__init__(bounded, ledger)


def script(call: ModelCall) -> Any:
    """Kernels as a whole get a little better each time, one of them fails; templates are as good as their search."""
    number = int(call.stage.split("-")[1])
    if call.schema is RewriteAnswer:
        marks = {1: "LIKE 64 1 0", 2: "WRONG", 3: "LIKE 16 1 0", 4: "LIKE 16 4 0"}
        return rewrite(marks.get(number, f"LIKE 64 4 0 {number}"))
    if call.role == "template":
        return template(source=f"// {call.custom_id}\n{SOURCE}")
    return {"plan": plan(branch(moves=[f"move {number}"]))}[call.role]


SMALL: dict[str, Any] = {
    "backend": "opencl", "strategy": "random", "evaluations": 12, "rounds": 2,
}  # fmt: skip


def models_of(folder: Path, answers: Script) -> Any:
    return lambda name: Capped(answers, folder.parent / f"{folder.name}-{name.replace('/', '-')}.ledger")


def run(folder: Path, asked: list[ModelCall] | None = None, answers: Script = script, **options: Any) -> Any:
    def noting(call: ModelCall) -> Any:
        if asked is not None:
            asked.append(call)
        return answers(call)

    settings = {**SMALL, "models": models_of(folder, noting), "arms": ["template+search", "template", "rewrite"]}
    found = ablate([RAW], folder=folder, **{"calls": CALLS, "repeats": 2, **settings, **options})
    return found[str(RAW)][0]


@pytest.mark.usefixtures("simulation")
class TestArms:
    def test_every_arm_has_its_own_way_and_the_same_caps(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TUNESMITH_WISDOM", str(tmp_path / "wisdom"))
        asked: list[ModelCall] = []
        found = run(tmp_path / "a", asked, repeats=1)
        assert not list(tmp_path.glob("wisdom*")), "repeats do not learn from each other"
        first = [call for call in asked if (call.role, call.stage) == ("plan", "round-1")]
        assert ["nothing is searched" in call.messages[0].content for call in first] == [False, True]
        by_name = {arm.arm: arm for arm in found}
        assert list(by_name) == ["template+search", "template", "rewrite"]
        for arm in found:
            (repeat,) = arm.repeats
            assert repeat.valid
            ledger = (tmp_path / f"a-{repeat.name}.ledger").read_text().splitlines()
            assert len([line for line in ledger if "capped" not in line]) <= CALLS
            assert repeat.by_shape >= max(1.0, repeat.speedup) - 1e-9
        # 20 us is the baseline; the best kernel as a whole takes 8.5 + len("16384") / 10 us.
        assert by_name["rewrite"].mean == pytest.approx(20 / 8.5)
        assert by_name["template"].mean == pytest.approx(20 / 10.5), "the default of the template"
        assert by_name["template+search"].mean > by_name["rewrite"].mean
        assert [by_name[arm].repeats[0].evaluations for arm in ("template+search", "rewrite")] == [12, 6]
        folder = tmp_path / "a" / "template-1"
        evaluations = rows(folder, "evaluation")
        assert not rows(folder, "asked"), "without a search only defaults are measured"
        assert len(evaluations) == 3 and all(event.stage.endswith("-trial") for event in evaluations)
        assert len({event.stage for event in rows(folder, "comparison")}) == 1, "tested once, at the end"

    def test_rules_rewrite_first_and_expose_the_best_kernel_at_last(self, tmp_path: Path) -> None:
        asked: list[ModelCall] = []
        (arm,) = run(tmp_path / "a", asked, arms=["tree"], repeats=1, planner="rules", branches=1, repairs=0)
        assert [call.schema is RewriteAnswer for call in asked] == [True] * 5 + [False]
        assert "LIKE 16 4 0" in asked[-1].messages[-1].content, "of the best rewrite"
        assert arm.repeats[0].evaluations == 12 and arm.mean > 20 / 8.5

    @pytest.mark.slow
    def test_an_interrupted_ablation_goes_on_and_a_finished_one_is_only_read(self, tmp_path: Path) -> None:
        asked: list[ModelCall] = []

        def dying(call: ModelCall) -> Any:
            if len(asked) == 9:
                raise Killed
            return script(call)

        with pytest.raises(Killed):
            run(tmp_path / "a", asked, answers=dying)
        first = run(tmp_path / "a", asked)
        count = len(asked)
        second = run(tmp_path / "a", asked)
        assert len(asked) == count and [arm.mean for arm in first] == [arm.mean for arm in second]
        assert [arm.mean for arm in first] == [arm.mean for arm in run(tmp_path / "b")]

    @pytest.mark.parametrize(
        ("arm", "kind", "ends"),
        [("rewrite", "unstructured", False), ("template", "timeout", False), ("rewrite", "capped", True)],
    )
    def test_failures_end_arms_where_no_answer_can_come(self, tmp_path: Path, arm: str, kind: Any, ends: bool) -> None:
        asked: list[ModelCall] = []
        found = run(
            tmp_path / "a",
            asked,
            answers=lambda call: ModelFailed(kind, "no") if call.stage == "round-2" else script(call),
            arms=[arm],
            repeats=1,
        )
        stages = list(dict.fromkeys(call.stage for call in asked))
        assert stages[:2] == ["round-1", "round-2"] and (len(stages) == 2) == ends
        assert found[0].repeats[0].valid and (not ends or found[0].repeats[0].ended_by == "no model")
        notes = [event.data for event in rows(tmp_path / "a" / f"{arm}-1", "note") if event.stage == "round-2"]
        assert notes[0]["failure"] == kind

    def test_all_files_of_requests_are_named_at_once(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"models": None, "calls": None, "repeats": 1, "model": f"batch:{tmp_path / 'air'}"}
        with pytest.raises(Waiting) as waiting:
            run(tmp_path / "a", arms=["template", "rewrite"], **options)
        said = str(waiting.value)
        assert all(f"{tmp_path / 'air' / name / 'requests.jsonl'}" in said for name in ("template-1", "rewrite-1"))
        assert said.startswith("2 run(s) wait: answer ") and said.endswith("then run the same ablation again.")
        assert "resume" not in said and ". " not in said

    def test_several_tasks_have_a_folder_each_and_count_alike(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = tmp_path / "copies" / "other"
        shutil.copytree(Path(RAW).parents[1] / "scale_add", copy.parent / "scale_add")
        shutil.copytree(Path(RAW).parent, copy)
        options: dict[str, Any] = {"arms": ["rewrite", "template"], "repeats": 1, "models": models_of(tmp_path, script)}
        found = ablate([RAW, copy], folder=tmp_path / "a", calls=2, **SMALL, **options)
        assert list(found) == [str(RAW), str(copy)]
        assert {path.parent.name for path in (tmp_path / "a").glob("*/ablation.json")} == {
            Path(RAW).parent.name,
            "other",
        }
        monkeypatch.setattr("tunesmith.graph.study.ablation.resume", None)  # runs that have ended are read
        ((alone, _),) = ablate([copy], folder=tmp_path / "a" / "other", calls=2, **SMALL, **options).values()
        both = [[arm.mean for arm in arms] for arms in (alone, found[str(copy)][0])]
        assert both[0] == both[1], "a task's folder is an ablation of its own"
        with pytest.raises(TunesmithError, match="TASK: the folders of several tasks have the same name"):
            ablate([RAW, Path(RAW).parent], folder=tmp_path / "b", calls=2, **SMALL, **options)

    def test_another_question_in_the_same_folder_is_refused_and_so_are_mistakes(self, tmp_path: Path) -> None:
        run(tmp_path / "a", arms=["template"])
        arms = "there is no arm 'guess'; they are tree, template.search, template, rewrite"
        for options, sentence in (
            ({"arms": ["template"], "evaluations": 13}, "holds an ablation with another settings"),
            ({"arms": ["guess"]}, arms),
            ({"arms": []}, "name each arm once"),
            ({"arms": ["template", "template"]}, "name each arm once"),
            ({"models": None}, "--model: an ablation compares ways to use a model"),
        ):
            with pytest.raises(TunesmithError, match=sentence):
                run(tmp_path / "a", **options)
        assert len(run(tmp_path / "a", arms=["template", "rewrite"])) == 2, "arms may be added"


def repeats(*values: float) -> list[Repeat]:
    return [Repeat(f"r-{i}", value, 2 * value, True, 10, 5, 1.0, "rounds") for i, value in enumerate(values)]


class TestArithmetic:
    def test_means_are_geometric_intervals_student_s_and_differences_those_of_one_seed(self) -> None:
        (arm,), differences = compare({"a": repeats(1.0, 2.0, 4.0)})
        assert arm.mean == pytest.approx(2.0) and arm.spread == pytest.approx(2.0) and differences == []
        # t of 0.975 with 2 degrees of freedom is 4.302653 (any table).
        half = 4.302653 * math.log(2) / math.sqrt(3)
        assert arm.low == pytest.approx(2 * math.exp(-half)) and arm.high == pytest.approx(2 * math.exp(half))
        # Seeds differ much more than arms do: taken apart, nothing would be shown.
        a, b = repeats(math.e**1, math.e**5, math.e**3), repeats(math.e**0, math.e**3.9, math.e**1.9)
        _, (one, shapes) = compare({"a": b, "b": a})
        assert not one.by_shape and shapes.by_shape and shapes.ratio == pytest.approx(one.ratio)
        assert (one.better, one.than) == ("b", "a")
        # Differences of 1, 1.1, 1.1: mean 16/15, standard deviation 0.1/sqrt(3), and 4.302653 as above.
        assert one.ratio == pytest.approx(math.exp(16 / 15))
        assert one.low == pytest.approx(math.exp(16 / 15 - 4.302653 * 0.1 / 3), rel=1e-5)
        over = over_tasks([compare({"a": repeats(1.0), "b": repeats(value)})[0] for value in (2.0, 4.0, 8.0)])
        assert (over[0].better, over[0].than) == ("b", "a") and over[0].ratio == pytest.approx(4.0)
        assert over[0].low == pytest.approx(4 * math.exp(-half)), "a task counts as a repeat does"
        (arm, _), (one, _) = compare({"a": repeats(2.0), "b": repeats(3.0)})
        assert arm.low is None and arm.spread is None and one.low is None, "one repeat has no interval"
        assert arm.by_shape == pytest.approx(4.0) and one.ratio == pytest.approx(1.5)


@pytest.mark.parametrize(("arm", "rounds"), [("rewrite", 48), ("tree", 24)])
def test_an_effort_profile_sets_an_arm_s_rounds(tmp_path: Path, monkeypatch: Any, arm: str, rounds: int) -> None:
    """Of 48 calls, and of two a round."""

    def begin(*_: Any, **settings: Any) -> Any:
        raise RuntimeError(f"{settings['rounds']} rounds")

    monkeypatch.setattr("tunesmith.graph.study.ablation.tune", begin)
    with pytest.raises(RuntimeError, match=f"^{rounds} rounds"):
        run(tmp_path / "a", arms=[arm], effort="max", planner="rules", calls=None, evaluations=600)


@pytest.mark.usefixtures("simulation")
@pytest.mark.parametrize(("mark", "valid"), [("WRONG", False), ("LIKE 1048576 1048576 0", True)])
def test_the_baseline_stays_where_what_was_found_is_wrong_or_slower(tmp_path: Path, mark: str, valid: bool) -> None:
    (arm,) = run(tmp_path / "a", answers=lambda call: rewrite(f"{mark} {call.custom_id}"), arms=["rewrite"])
    assert [(one.valid, one.speedup, one.by_shape) for one in arm.repeats] == [(valid, 1.0, 1.0)] * 2


def test_what_is_printed(capsys: Any) -> None:
    """Tokens where somebody counted them."""
    counted = [replace(one, prompt_tokens=34_600, completion_tokens=24_300) for one in repeats(2.0, 2.2)]
    print_ablation("a task", *compare({"tree": counted, "rewrite": repeats(1.5, 1.6)}))
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if "10 10" in line]
    assert {row[0]: row[-1] for row in rows} == {"tree": "35k/24k", "rewrite": "-"}
    out = " ".join(out.split())
    assert "95 % t interval" in out and "tree is" in out and "x as fast as rewrite, 95 %" in out
