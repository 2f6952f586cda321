"""The folder of candidates: every bad one is rejected for the right reason, every good one accepted; what PoCL or a
compiler can judge is judged everywhere, the rest needs a GPU. The checker itself under test: with one check taken out,
a wrong candidate passes that it catches otherwise. And the programs that make mutants of kernels and judge them.

What is looked at in a step (`verify.CHECKS`), the kinds of contents and the reasons of rejections are registries: one
more entry without its mutant fails here.
"""

import importlib
import itertools
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from judging import FOLDER, Fixture, compiler_verdict, edited, fixtures, verdict_of
from numpy.typing import NDArray

from tunesmith.actors.workers import Deadlines
from tunesmith.hw.probe import DeviceInfo, probe_cuda
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact, Candidate, types_key
from tunesmith.kernels.build.machine_code import constant_variables, global_variables, used_variables
from tunesmith.kernels.build.source import Specialised, specialise
from tunesmith.kernels.check import plan as planning
from tunesmith.kernels.check import verify as checks
from tunesmith.kernels.check.compare import REASONS
from tunesmith.kernels.check.plan import Step
from tunesmith.kernels.check.sanitizer import find_tool
from tunesmith.kernels.launch import buffers as workload_data
from tunesmith.kernels.launch.contents import CHANGES, KINDS, Contents, draw, draw_variants
from tunesmith.kernels.spec.task import Fill, Special, Workload
from tunesmith.kernels.spec.taskfile import load_task

LIBRARY = FOLDER.parent.parent / "kernels" / "library"
DEADLINES = Deadlines(compile=8.0, run=8.0)
FILES = fixtures()
ALL = FILES + edited()
QUICK = {"residual_not_written", "writes_past_end", "skips_when_written", "include_by_macro"}
QUICK |= {"silu_probes_sixteen", "softmax_reads_before"}
"""One candidate of each kind of judging, for every test run: the verdict on these comes early. Right candidates go
through all steps, and are judged with the slow tests."""


def parameters(backend: str, judges: set[str]) -> list[object]:
    chosen = [one for one in ALL if one.backend == backend and one.judge in judges]
    return [
        pytest.param(one, id=one.file, marks=[] if Path(one.file).stem in QUICK else pytest.mark.slow) for one in chosen
    ]


def test_the_index_names_every_file_and_each_reason_is_documented_and_a_candidate_s() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.glob("*/*.c[ul]") if path.parent.name in ("bad", "good")}
    assert files == {one.file for one in FILES if (FOLDER / one.file).exists()}
    assert all(reason in REASONS for one in ALL for reason in one.reasons)
    text = (FOLDER.parent.parent / "docs" / "trust.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(REASONS)
    # A source of more than 1 MiB, a configuration, a kernel that cannot end or be that fast: tests of the judge.
    elsewhere = {"source_too_large", "infeasible", "implausible"}
    assert set(REASONS) - {reason for one in ALL for reason in one.reasons if len(one.reasons) < 5} <= elsewhere


@pytest.mark.parametrize("backend", ["opencl", "cuda"])
def test_candidates_are_of_all_classes_and_tasks(backend: str) -> None:
    of_backend = [one for one in edited() if one.backend == backend]
    assert len([one for one in of_backend if one.reasons]) >= 120
    assert len([one for one in of_backend if not one.reasons]) >= 25
    assert len({one.file for one in of_backend}) == len(of_backend)
    assert len({one.kind for one in of_backend if one.reasons}) == (13 if backend == "cuda" else 12)
    tasks = [path.parent.name for path in LIBRARY.glob("*/task.toml")]
    assert {one.task for one in of_backend} >= {name for name in tasks if backend in load_task(name).backends}


@pytest.mark.parametrize("fixture", parameters("opencl", {"pocl", "sanitizer"}))
def test_verdicts_with_opencl(fixture: Fixture, device: DeviceInfo) -> None:
    if fixture.judge == "sanitizer" and find_tool("oclgrind") is None:
        pytest.skip("oclgrind is not installed")
    # Nothing of these is about deadlines.
    deadlines = Deadlines(compile=60.0, run=60.0) if fixture.kind or "edited" in fixture.file else DEADLINES
    # Where the verdict comes early, a second process takes longer to start than it saves.
    processes = 1 if Path(fixture.file).stem in QUICK else None
    verdict = verdict_of(fixture, device.limits, device.index, deadlines, processes=processes)
    assert fixture.agrees(verdict), f"{verdict.reason}: {verdict.detail}"


@pytest.mark.parametrize("fixture", parameters("cuda", {"compiler", "gpu", "sanitizer"}))
def test_verdicts_of_the_cuda_compiler(fixture: Fixture) -> None:
    pytest.importorskip("cuda.bindings")
    verdict = compiler_verdict(fixture, resolve_target("h200"), DEADLINES)
    if fixture.judge == "compiler":
        assert verdict is not None and fixture.agrees(verdict), verdict
    else:
        # A candidate that a device must judge may be refused before, if it is wrong.
        assert verdict is None or (fixture.reasons and fixture.agrees(verdict)), verdict


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fixture", [pytest.param(one, id=one.file) for one in ALL if one.backend == "cuda"])
def test_verdicts_on_a_gpu(fixture: Fixture) -> None:
    if fixture.judge == "sanitizer" and find_tool("compute-sanitizer") is None:
        pytest.skip("compute-sanitizer is not installed")
    cuda = probe_cuda().devices[0]
    verdict = verdict_of(fixture, cuda.limits, cuda.index, Deadlines(compile=20.0, run=30.0))
    assert fixture.agrees(verdict), f"{verdict.reason}: {verdict.detail}"


def test_what_is_state_of_a_kernel(nvrtc: Any) -> None:
    """Unless the source might have variables of their names."""
    joined, macro = "NAME(__cuda, rt_i2opi_d)", "#define NAME(a, b) a##b\n"
    for before, body, state in (
        ("", "x[0] = sin(x[1]);", False),
        ("", "static double __cudart_i2opi_d; x[0] = __cudart_i2opi_d += sin(x[1]);", True),
        (macro, f"static double {joined}; x[0] = {joined} += 1;", True),
    ):
        text = f'{before}extern "C" __global__ void wave(double* x) {{ {body} }}'
        artifact = nvrtc.compile(Specialised("cuda", "wave", text))
        assert isinstance(artifact, Artifact) and bool(artifact.globals) == state
    text = "__constant__ int table[4]; static __constant__ float other[2];\n"
    kernel = 'extern "C" __global__ void k(float* x, int i) { x[i] = table[i] + other[i]; }'
    artifact = nvrtc.compile(Specialised("cuda", "k", text + kernel))
    assert isinstance(artifact, Artifact) and set(constant_variables(artifact.code)) == {"table", "other"}
    ptx = ".global .align 4 .u32 FOLDED = 4;\n.global .align 4 .u32 state;\nld.global.u32 %r1, [state];"
    assert used_variables(("FOLDED", "state", "$__renamed$1"), ptx, "") == ("state", "$__renamed$1")
    for code in (b"", b"\x7fELF" + bytes(60), b"text" * 40):
        with pytest.raises(ValueError):
            global_variables(code)


SCALE_ADD = Path(__file__).resolve().parents[1] / "data" / "scale_add" / "task.toml"
FIXTURES = {one.file.removeprefix("edited/"): one for one in ALL}


def of(**sizes: int) -> Workload:
    return Workload(name="made up", sizes=sizes, types={"T": "float16"})


def passed(found: Any) -> bool:
    assert isinstance(found, checks.Passed | checks.WrongResult), found
    return isinstance(found, checks.Passed)


class Drawn:
    """Draws nothing: two sets, the first of them, everything in its order."""

    def integers(self, low: int, high: int | None = None) -> int:
        return 0 if high is None else low

    def shuffle(self, _: list[Any]) -> None:
        pass

    def random(self) -> float:
        return 0.0


Fault = Callable[[workload_data.WorkloadData, Any], None]


def output_of(data: workload_data.WorkloadData, launch: Any) -> Any:
    """The buffer of the output that a launch writes."""
    (position,) = [at for at, argument in enumerate(data.task.arguments) if argument.role == "out"]
    return launch.arguments[position]


def wrong_element(data: workload_data.WorkloadData, launch: Any) -> None:
    """The launch got its last output wrong."""
    output = output_of(data, launch)
    data.device.write(output, np.full(2, 0x5A, np.uint8), data.device.array(output, "uint8").size - 2)


def all_a_little_off(data: workload_data.WorkloadData, launch: Any) -> None:
    """The launch got all of its output wrong by less than the tolerance."""
    values = data.device.array(output_of(data, launch), "float16").view(np.float16)
    tolerance, exact = data.task.tolerance_of("float16"), values.astype(np.float64)
    off = exact + 0.45 * (tolerance.atol + tolerance.rtol * np.abs(exact))
    data.device.write(output_of(data, launch), off.astype(np.float16).view(np.uint8))


def astray(index: int) -> Fault:
    """The launch turned a bit between the arrays of a set that is not its own."""

    def fault(data: workload_data.WorkloadData, _: Any) -> None:
        whole = data.device.read(data.set_buffer(index)).copy()
        whole[0] ^= 1
        data.device.write(data.set_buffer(index), whole)

    return fault


FAULTS: dict[str, dict[str, Fault]] = {
    "result": {"first": wrong_element},
    "surroundings": {"first": astray(1), "stale": astray(1)},
    "accuracy": {"first": all_a_little_off},
    "repeats": {"repeats": wrong_element},
    "stale": {"stale": wrong_element},
    "other_set": {"other_set": wrong_element},
    "surroundings_at_the_end": {"other_set": astray(0)},
}
"""For each check its fault, and the launches that have it: the candidate's first, or a check's own."""


@pytest.mark.parametrize("name", checks.CHECKS)
def test_what_only_one_check_of_a_step_catches(name: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if device.backend != "opencl":
        pytest.skip("the candidate is OpenCL C")
    opened = open_device(device.limits, device.index)
    task, template = FIXTURES["silu_backwards.cl"].load()
    workload = of(n=16, d=512)
    artifact = open_compiler(device.limits, device.index).compile(specialise(template, {}, workload.types))
    assert isinstance(artifact, Artifact), artifact
    candidate = Candidate(template, {}, {types_key(workload): artifact})
    step = Step(workload, Contents(change="rows"))
    monkeypatch.setattr(checks, "np", SimpleNamespace(random=SimpleNamespace(default_rng=lambda *_: Drawn())))
    data = checks.prepare_step(opened, task, step, max_bytes=1 << 28)
    assert isinstance(data, workload_data.WorkloadData), data
    plain, during, faults = opened.launch, ["first"], FAULTS[name]

    def told(check: str, look: Any) -> Any:
        def looked(examination: Any) -> Any:
            during.append(check)
            found = look(examination)
            during.pop()
            return found

        return looked

    def launch(one: Any) -> None:
        plain(one)
        opened.synchronize()
        # Not launches of the check's own kernels.
        if one.kernel.function_name == template.entry and (fault := faults.get(during[-1])) is not None:
            fault(data, one)

    def verdict() -> Any:
        return checks.verify(candidate, standard, step, data)

    standard = checks.measure_baseline(candidate, step, data)
    monkeypatch.setattr(opened, "launch", launch)
    for check, look in checks.CHECKS.items():
        monkeypatch.setitem(checks.CHECKS, check, told(check, look))
    assert not passed(verdict())
    monkeypatch.delitem(checks.CHECKS, name)
    assert passed(verdict())


@pytest.mark.parametrize("hidden", [(), ("mbarriers",)])
def test_hidden_barriers_make_for_more_launches(candidate: Any, device: Any, monkeypatch: Any, hidden: Any) -> None:
    """Also in steps on made-up sizes; one wrong launch of twenty is found."""
    opened, task = open_device(device.limits, device.index), load_task(str(SCALE_ADD))
    artifacts = {key: replace(one, unfollowed=hidden) for key, one in candidate.artifacts.items()}
    step = Step(task.workloads[0], Contents(), derived=True)
    data = checks.prepare_step(opened, task, step, max_bytes=1 << 28)
    assert isinstance(data, workload_data.WorkloadData), data
    plain, launches = opened.launch, itertools.count()

    def launch(one: Any) -> None:
        plain(one)
        if one.kernel.function_name == candidate.template.entry and next(launches) == 20:
            opened.synchronize()
            wrong_element(data, one)

    measured = checks.measure_baseline(candidate, step, data)
    monkeypatch.setattr(opened, "launch", launch)
    found = checks.verify(replace(candidate, artifacts=artifacts), measured, step, data)
    assert passed(found) != bool(hidden) and (not hidden or found.reason == "nondeterministic")


def middle(values: NDArray[Any]) -> float:
    return float(np.median(np.abs(values)))


def outlying(values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.abs(values) > 20 * max(1, middle(values))


def share(flags: NDArray[np.bool_]) -> float:
    return float(flags.mean())


def is_stretch(flags: NDArray[np.bool_]) -> bool:
    """Whether the flags are whole rows and one stretch of columns of others, and no other."""
    rows = flags.reshape(64, 64)
    parts = rows[rows.any(axis=1) & ~rows.all(axis=1)]
    columns = np.flatnonzero(parts.any(axis=0))
    is_one = columns.size == 0 or bool((parts.sum(axis=1) == np.ptp(columns) + 1).all())
    return 0 < share(flags) < 1 and bool(rows.all(axis=1).any()) and is_one


def second_often(column: NDArray[Any]) -> int:
    """How often the value occurs that is the second most frequent."""
    return int(np.sort(np.append(np.unique(column, return_counts=True)[1], 0))[-2])


ONLY: dict[str, Callable[[NDArray[Any]], bool]] = {
    "task": lambda x: share(x == 0.5) > 0.9 and share(x == 7) > 0,
    "normal": lambda x: 0 < share(x == 7) < 0.1 and np.unique(x).size > 100 and x.min() < -2,
    "uniform": lambda x: 0 < share(x == 7) < 0.1 and np.unique(x).size > 100 and x.min() > -2,
    "large": lambda x: np.isfinite(x).all() and 2 < middle(x) < 900 and x.min() < -10 and not outlying(x).any(),
    "outliers": lambda x: 0 < share(outlying(x)) < 0.2 and set(np.flatnonzero(outlying(x)) % 64) > set(range(0, 64, 7)),
    "columns": lambda x: bool(outlying(x).reshape(64, 64)[:, [0, -1]].all()) and share(outlying(x)) < 0.1,
    "heavy_tails": lambda x: (
        0.5 < middle(x) < 2 and np.unique(x[np.abs(x) > 10]).size > 50 and share(np.abs(x) < 0.1) < 0.1
    ),
    "shifted": lambda x: abs(np.median(x)) > 3 and np.unique(x).size > 100 and x.min() * x.max() > 0,
    "negative": lambda x: np.isfinite(x).all() and x.max() < 0,
    "tiny": lambda x: 2**-126 < np.abs(x).max() < 2**-3,
    "subnormal": lambda x: 0 < np.abs(x).max() < 2**-126,
    "exponents": lambda x: bool(np.isfinite(x).all()) and share(np.abs(x) > 8 * middle(x)) > 0.15,
    "constant": lambda x: np.unique(x).size == 1 and x[0] != 0,
    "zeros": lambda x: not np.any(x) and not np.signbit(x).any(),
    "signed_zeros": lambda x: bool((np.signbit(x) & (x == 0)).any()),
    "ties": lambda x: np.unique(x).size == 4,
    "peak": lambda x: np.unique(x).size > 1 and share(x == np.median(x)) > 0.98 and share(x > np.median(x)) > 0.01,
    "sorted": lambda x: np.unique(x).size > 100 and bool(np.all(np.diff(x.reshape(-1, 64), axis=1) >= 0)),
    "edges": lambda x: share(x == 7) > 0.2,
    "infinities": lambda x: bool(np.any(x == np.inf)),
    "masked": lambda x: share(x == -np.inf) > 0.05,
    "hidden": lambda x: bool(np.isfinite(x).all()) and is_stretch((x < -9e3) & (x > -2e15)),
    "lowest": lambda x: is_stretch(x < -1e30),
    "padding": lambda x: is_stretch(x == 0),
    "repeated": lambda x: np.unique(x).size > 100 and max(second_often(column) for column in x.reshape(64, 64).T) > 5,
    "symmetric": lambda x: np.unique(x).size > 1 and np.array_equal(x, x.reshape(64, 64).T.ravel()),
    "counts": lambda x: np.unique(x).size > 16 and bool((x == np.round(x)).all()),
    "nans": lambda x: bool(np.isnan(x).any()),
}
"""For each kind of contents, data on which a kernel may be wrong and be so under no other kind."""
FILLS = [
    Fill(kind="constant", mean=0.5, scale=1.0, special=(Special(value=7.0, fraction=0.01),)),
    Fill(kind="normal", mean=0.0, scale=1.0, special=(Special(value=7.0, fraction=0.01),)),
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_contents_catches_what_no_other_does(kind: Any) -> None:
    def is_wrong_on(other: Any, fill: Fill, seed: int) -> bool:
        values = draw(other, fill, (64, 64), "float32", np.random.default_rng(seed))
        with np.errstate(invalid="ignore"):
            return bool(ONLY[kind](values.view(np.float32)))

    found = [[other for other in KINDS if is_wrong_on(other, fill, seed)] for fill in FILLS for seed in range(5)]
    assert [kind] in found, found


def test_a_size_that_only_the_source_names_is_checked(device: Any) -> None:
    task = load_task("silu_and_mul")
    shapes = planning.Shapes(task, device.limits, task.workloads_for(device.limits.kind, held_out=False)[0], 0)
    steps = planning.source_size_steps(shapes, "if (n == 777 || d % (1 << 9) < 64) {} // 555")
    found = {(name, size) for step in steps for name, size in step.workload.sizes.items()}
    assert {(name, size) for name in ("n", "d") for size in (776, 777, 778, 511, 512, 513)} <= found
    assert planning.source_size_steps(shapes, "x = 3.5f + 1e4;") == []


@pytest.mark.parametrize("change", CHANGES)
def test_each_way_of_changing_inputs_is_another(change: str) -> None:
    variants = draw_variants(np, load_task("silu_and_mul"), of(n=64, d=64), Contents(change=change), 2)
    ((first,), (second,)) = (one.values() for one in variants)
    differs = (first != second).reshape(64, -1)
    rows = differs.any(axis=1).mean()
    assert {"all": differs.mean() > 0.9, "rows": 0.4 < rows < 0.95, "few": 0 < differs.sum() < 4}[change]


SOURCE = (Path(__file__).with_name("sources") / "total.cl").read_text()


@pytest.fixture(scope="module")
def mutants() -> Any:
    # Imported here, as its statistics take a second to import, in each process that collects tests.
    return importlib.import_module("tunesmith.cli.measure.mutants")


def edited_lines(mutants: Any, operator: str) -> set[str]:
    """The changed lines by an operator."""
    found = set()
    for edit in mutants.edits(SOURCE, ["n", "d"], "opencl", random.Random(0)):
        if edit.kind == operator:
            text = SOURCE[: edit.start] + edit.text + SOURCE[edit.end :]
            found |= {line.strip() for line in set(text.splitlines()) - set(SOURCE.splitlines())}
    return found


@pytest.mark.parametrize(
    ("operator", "line"),
    [
        ("guard", "for (int i = 0; i <= d; ++i) sum += TWICE(load(in + row * d + i));"),
        ("guard", "if (0) return;"),
        ("bound", "for (int i = 0; i < d - 1; ++i) sum += TWICE(load(in + row * d + i));"),
        ("loop", "for (int i = 0; i < d; i += 2) sum += TWICE(load(in + row * d + i));"),
        ("loop", "for (int i = 0 + 1; i < d; ++i) sum += TWICE(load(in + row * d + i));"),
        ("index", "out[row + 1] = fmax(sum, partial[row & 0xff]);"),
        ("index", "for (int i = 0; i < d; ++i) sum += TWICE(load(in + row * d + i - 1));"),
        ("stride", "for (int i = 0; i < d; ++i) sum += TWICE(load(in + row * n + i));"),
        ("stride", "for (int i = 0; i < d; ++i) sum += TWICE(load(in + i * d + row));"),
        ("min_max", "out[row] = fmin(sum, partial[row & 0xff]);"),
        ("mask", "out[row] = fmax(sum, partial[row & 127]);"),
        ("mask", "out[row] = fmax(sum, partial[row | 0xff]);"),
        ("constant", "float sum = (0.5f + 1.0f);"),
        ("sign", "#define TWICE(x) ((x) - (x))"),
    ],
)
def test_edits_of_each_operator(mutants: Any, operator: str, line: str) -> None:
    assert line in edited_lines(mutants, operator)


def test_statements_are_dropped_whole_and_shares_have_intervals(mutants: Any) -> None:
    assert edited_lines(mutants, "barrier") == {";"}
    assert edited_lines(mutants, "statement") == {";", "for (int i = 0; i < d; ++i) ;"}
    assert any("vstore_half_rte(sum" in line for line in edited_lines(mutants, "half"))
    changed = [SOURCE[edit.start : edit.end] for edit in mutants.edits(SOURCE, [], "opencl", random.Random(0))]
    assert "64" not in changed and "8" not in changed
    kept = {"candidate": "a", "kernel": "k", "class": "guard", "verdict": "accepted", "reason": "", "printed": ""}
    killed = kept | {"candidate": "b", "verdict": "rejected", "reason": "mismatch"}
    equal = kept | {"candidate": "c", "judgement": "equivalent: no row is so long"}
    found = mutants.summary([kept, killed, equal, kept | {"candidate": "k", "class": ""}])
    assert found["rejected"] == "1 of 2: 50.0% (9.5% - 90.5%)" and found["survivors"] == ["a"]
    many = mutants.summary([killed] * 297 + [kept] * 3)
    assert many["rejected"] == "297 of 300: 99.0% (97.1% - 99.7%)"
    assert found["left_out"] == {"equivalent": 1} and not found["originals_not_accepted"]


@pytest.mark.parametrize(("backend", "least"), [("opencl", 14), ("cuda", 29)])
def test_every_kernel_has_mutants_and_a_seed_repeats_them(mutants: Any, backend: Any, least: int) -> None:
    kernels = list(mutants.kernels(backend))
    assert len(kernels) >= least
    by_kernel = [mutants.mutants_of(one, 3, set()) for one in kernels]
    assert [mutants.mutants_of(one, 3, set()) for one in kernels[:4]] == by_kernel[:4]
    found = [one for of_kernel in by_kernel for one in of_kernel]
    assert len({one.file for one in found}) == len(found) and all(one.text != one.original.source for one in found)
    assert {one.kind for one in found} == {
        *("guard", "bound", "loop", "index", "stride", "min_max", "mask", "constant", "sign", "operand"),
        *("barrier", "statement", "half"),
    }


@pytest.mark.slow
def test_mutants_are_judged_but_for_those_with_the_kernels_own_code(mutants: Any, device: DeviceInfo) -> None:
    def mutants_of(backend: Any, kernel: str) -> list[Any]:
        (original,) = (one for one in mutants.kernels(backend) if one.file == kernel)
        return mutants.mutants_of(original, 0, set())

    def with_line(found: list[Any], after: str) -> Any:
        return next(one for one in found if one.after.startswith(after))

    found = mutants_of("opencl", "silu_and_mul/baseline")
    line = mutants.answer(with_line(found, "if (col < d - 1) {"), device, Deadlines(run=60.0), "", 1)
    assert line["verdict"] == "rejected" and mutants.counts(line) and mutants.is_killed(line), line
    first = "const int first = start + get_local_id(0) / (VEC * ITEMS), step = VEC;"
    other = with_line(mutants_of("opencl", "silu_and_mul/tiles"), first)
    assert mutants.unfit(other, device.limits, device.index) == "same code"
    line = mutants.answer(with_line(found, "float load(__global const T/ "), device, Deadlines(), "", 1)
    assert line["reason"] == "compile_failed" and not mutants.counts(line)
    pytest.importorskip("cuda.bindings")
    limits, found = resolve_target("sm_90"), mutants_of("cuda", "transpose/baseline")
    assert mutants.unfit(next(one for one in found if one.kind == "index"), limits, 0) == ""
    assert {mutants.unfit(one, limits, 0) for one in found if one.kind == "sign"} == {"", "compile_failed"}
