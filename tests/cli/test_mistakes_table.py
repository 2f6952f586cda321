"""Mistakes of users and the answers: a row has the change of a task or run, the command, the exit code, and the words
that the answer must have. Each mistake once ended in a traceback, in a hang, in the blame of something else, or in
silence. No other file may change, and a mistake is one sentence on standard error. Then mistakes that need more than a
changed file, and the ways in which a command ends."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiling import edit
from simulated_pool import SCALE_ADD, SimulatedPool, ended_run, simulate_device

from tunesmith.cli.app import EXIT_DONE, EXIT_INTERRUPTED, EXIT_MISTAKE, EXIT_NOTHING, EXIT_UNEXAMINED, EXIT_UNMEASURED
from tunesmith.cli.main import main
from tunesmith.graph import tune
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.build.artifact import EvaluationRequest
from tunesmith.kernels.outcome import Evaluation, WrongResult
from tunesmith.kernels.spec.task import TaskError

Change = Callable[[Path, Path], object]
"""Of a task's folder and of a run's."""
CHECK = ("check", "{task}", "--source", "{task}/baseline.cl", "--reference-deadline", "2")
MINE = ("check", "{task}", "--source", "{task}/mine.cl")
TUNE = ("tune", "{task}", "--run-dir", "{task}/new", "--evaluations", "4", "--rounds", "1")
BENCH = ("bench", "{task}", "--reference-deadline", "2")
SPACE = ("space", "{task}")
INIT = ("init", "{task}/k.cu", "--out", "{task}/new")
REPORT = ("report", "{run}")
CSV = ("report", "{run}", "--csv", "{task}/table.csv")
T4 = ("--as", "t4")
DATA = Path(__file__).resolve().parent.parent / "data"
HEAD = "__kernel void scale(__global const float* x, __global float* out, float factor, int n) "
REFERENCE = "import time\nimport numpy as np\n\ndef scale(x, factor, n):\n    {body}\n"


def write(folder: Path, body: str = "return {'out': factor * x}") -> None:
    """A task of ten lines for OpenCL, whose reference does what `body` says."""
    shutil.copytree(DATA / "scale", folder, dirs_exist_ok=True)
    (folder / "reference.py").write_text(REFERENCE.format(body=body))


def nothing(task: Path, run: Path) -> None:
    """The mistake is in the command."""


def edited(file: str, old: str, new: str) -> Change:
    return lambda task, run: edit(task, file, old, new)


def written(file: str, text: str) -> Change:
    """A file of the task, or the run's summary.json."""
    return lambda task, run: ((run if file == "summary.json" else task) / file).write_text(text)


def full_folder(task: Path, run: Path) -> None:
    (task / "new").mkdir()
    (task / "new" / "thesis.tex").touch()


IN_TASK = (
    ('"ceil_div(n, 64)"', '"10**18"', "must be a whole number from 1 to 2147483647"),
    ('dtype = "float32"', 'dtype = "float31"', "float31"),
    ('"template.toml"', '"template.cl"', "template.cl is not a template"),
    ("{ source_file", "{ sorce_file", "key backends.opencl.baseline: unknown key 'sorce_file'; did you mean"),
    ("baseline = {", "baseline = { notes = 1,", "the keys are label, source_file, backend, "),
    ('flops = "n"', 'flops = "n"\nrequires = ["n"]', "key requires[1]: `n` is not a condition"),
)
"""In task.toml: old text, new text, the key or value that `space` must name."""
CONSTRAINT, ITEMS, GRID = "GROUP * ITEMS <= 256", '{ name = "ITEMS", values = [1, 4] }', "ceil_div(n, GROUP * ITEMS)"
IN_TEMPLATE = (
    (GRID, "10**18", "no feasible configuration"),
    (CONSTRAINT, "GROUP // (ITEMS - 1) > 1", "modulo by zero (GROUP=16, ITEMS=1)"),
    (CONSTRAINT, "GROUP < 64 && ITEMS < 4", "and `and`, `or`, `not`"),
    (ITEMS, '{ name = "ITEMS", values = [[1, 4], 16] }', "key parameters[ITEMS].values[1]: give a number"),
    ("[launch]", 'max_registers = "32"\n\n[launch]', "key max_registers: it is for CUDA"),
    ("[launch]", "static_shared_bytes = -4\n[launch]", "static shared memory is -4"),
)
OF_OPTIONS = (
    (("--target", "."), "No target is called '.': name one of"),
    (("--target", "mi250"), "targets are NVIDIA GPUs, such as h200, and for kernels in Triton gfx942"),
    (("--target", "gfx942"), "is not compiled for gfx942 (CDNA 3)"),
    (("--run-dir", "~nobody-here/run"), "--run-dir: the home"),
    (("--run-dir", "{run}/best/new"), "the folder of a run"),
    (("--lanes", "4", "--run-dir", "{task}/new"), "--lanes: 4 is more than there can be"),
    (("--seed", "soon"), "Invalid value for '--seed': Input should be a valid integer"),
    (("--backend", "cuda"), "no cuda sources"),
    (("--strategy", "wishing"), "random"),
    (("--rouns", "1"), "No such option: --rouns (Possible options: --rounds, --run-dir); `tunesmith tune --help`"),
    (("--model-for", "x"), "--model-for: 'x' is not of the form ROLE=NAME."),
    (("--effort", "huge"), "'quick', 'balanced' or 'max'"),
    (("--objective", "energy", "--run-dir", "{task}/new"), "choose an NVIDIA GPU"),
)
"""Of `tune`, on a task that is right."""
HALF_A_CHARACTER = r'{"tune_params": {"GROUP": [1]}, "tune_params_keys": ["\ud800"], "cache": {}}'
PLAIN_CUDA = "__global__ void k(float* x) { x[threadIdx.x] = 1; }"
ANSWERS = (
    *((SPACE, edited("task.toml", old, new), 2, named) for old, new, named in IN_TASK),
    *((SPACE, edited("template.toml", old, new), 2, named) for old, new, named in IN_TEMPLATE),
    *((("tune", "{task}", *options), nothing, 2, named) for options, named in OF_OPTIONS),
    (("check", "{task}"), edited("template.toml", CONSTRAINT, "GROUP * ITEMS > 100000"), 2, "has no feasible"),
    (CHECK, edited("reference.py", "import numpy", "import time\ntime.sleep(9999)\nimport numpy"), 2, "for 2 s"),
    # Sources, templates and the launch.
    (SPACE, edited("template.toml", ITEMS, '{ name = "ITEMS", values = [1, 99999999999999999999999] }'), 0, "2 of 4"),
    (SPACE, edited("template.toml", "[la", "fast_math = true\n[la"), 0, "4 of 4"),
    (SPACE, edited("task.toml", 'source_file = "baseline.cl"', 'source_file = ["baseline.cl"]'), 0, "4 of 4"),
    (SPACE, edited("template.toml", GRID, "n / (GROUP * ITEMS)"), 0, "On the held-out workload 1001: none of them is"),
    ((*SPACE, "--json"), edited("task.toml", 'templates = ["template.toml"]', ""), 0, "there is no loop to unroll"),
    (SPACE, edited("task.toml", 'templates = ["template.toml"]', ""), 0, "rule(s) do not apply (--json says why)."),
    (SPACE, edited("baseline.cl", "factor * x[i]", "factor * z[i]"), 2, "baseline:1:"),
    *((CHECK, written(f, ""), 2, f"{f} is empty") for f in ("template.cl", "task.toml")),
    (CHECK, edited("template.toml", 'block = ["GROUP"]', 'block = ["GROUP"]\nshared_bytes = "64"'), 2, "the last"),
    (CHECK, edited("template.cl", "int n)", "int n, __local float* scratch)"), 2, "give its bytes as `shared_bytes`"),
    (TUNE, edited("template.cl", "float factor, int n", "int n, float factor"), 2, "bring both into one order"),
    *(
        (command, edited("template.toml", "values = [16, 64]", "values = [16, 512], default = 512"), code, named)
        for command, code, named in (
            (SPACE, 0, "The default, GROUP=512, ITEMS=1, is not feasible"),
            (("check", "{task}"), 0, "is not feasible: `GROUP"),
            (BENCH, 2, "name another with --config"),
        )
    ),
    (MINE, written("mine.cl", HEAD + '{ printf("%d", n); }\n'), 1, "rejected: "),
    ((*MINE, "--json"), written("mine.cl", " " * 5_000_000), 1, '"source_too_large"'),
    (
        ("check", "{task}", "--source", "{task}/mine.cu"),
        written("mine.cu", PLAIN_CUDA),
        2,
        "takes OpenCL: name a .cl file",
    ),
    *(((*CHECK, "--config", text), nothing, 2, "--config") for text in ('{{"X": 1}}', "[1]", "no json")),
    ((*CHECK, "--check-time", "soon"), nothing, 2, "--check-time: 'soon' is not a duration"),
    ((*CHECK, "--target", "sm_90"), nothing, 2, "has no cuda sources; it has opencl"),
    ((*CHECK, "--run-deadline", "1"), edited("baseline.cl", "if (i < n)", "while (n);"), 2, "exceeded its deadline of"),
    ((*BENCH, "--vs", "{task}/task.toml"), nothing, 2, "task.toml cannot be measured"),
    ((*BENCH, "--template", "{task}/task.toml"), nothing, 2, "task.toml is a task, not a template"),
    *(
        (command, edited("task.toml", "[[workloads]]", '[[workloads]]\ndevices = ["gpu"]'), 2, named)
        for command, named in ((TUNE, "no workload to tune on a cpu"), (BENCH, "no workload for a cpu"))
    ),
    # Commands and their arguments.
    (("tune",), nothing, 2, "Missing argument 'task'; `tunesmith tune --help` shows how it is used."),
    (("no-such",), nothing, 2, "No such command 'no-such'; `tunesmith --help` shows how it is used."),
    (("resume", "nowhere", "--time-limit", "soon"), nothing, 2, "--time-limit: 'soon' is not a duration"),
    *(
        (("tune", "nowhere", option, value), nothing, 2, repr(value))
        for option, value in (("--model-for", "\n"), ("--model-option", "a\rb"), ("--time-limit", "1\n2"))
    ),
    (("simulate", "{task}/half.json"), written("half.json", HALF_A_CHARACTER), 2, r"'\ud800'"),
    (("space", "GEMM"), nothing, 2, "There is no task 'GEMM': did you mean gemm?"),
    ((*SPACE, "--workload", "7x7"), nothing, 2, "4096"),
    (("space", "gemm", "--target", "h200", "--backend", "opencl"), nothing, 2, "the target h200 is for cuda"),
    (("space", "gemm", "--target", "gfx942"), nothing, 2, "only kernels in Triton are compiled for gfx942"),
    (("tune", "{task}/template.toml"), nothing, 2, "template.toml is a template and no task: give "),
    (("tune", "{task}/baseline.cl"), nothing, 2, "is not a task: give the task"),
    (("tune", "{task}", "--settings", "{task}/own.toml"), written("own.toml", "evaluation = 3\n"), 2, "'evaluations'?"),
    (("init", "{task}/reference.py"), nothing, 2, "there is no kernel, a function decorated with @triton.jit"),
    # Old comments are Latin-1.
    (INIT, lambda task, run: (task / "k.cu").write_bytes(b"// caf\xe9"), 2, "there is no kernel"),
    (INIT, written("k.cu", "__global__ void k(float* x) { *x = 1 }"), 2, "1 of k.cu is not understood (expected ';'"),
    (INIT, written("k.cu", PLAIN_CUDA[:-1]), 2, "line 1 of k.cu is not understood (expected '}'): correct it."),
    (INIT, written("k.cu", PLAIN_CUDA.replace("x)", "x")), 2, "k.cu is not understood (expected ')'): correct it."),
    ((*INIT[:3], "{task}"), written("k.cu", PLAIN_CUDA), 2, "is not empty; name a new or an empty"),
    (("init", "{task}/baseline.cl", "--entry", "other"), nothing, 2, "baseline.cl: there is no kernel 'other'; choose"),
    (("init", "{task}/t1.json"), written("t1.json", '{"General": 1}'), 2, "the key KernelSpecification is missing"),
    # A run's files.
    (("resume", "{run}"), written("summary.json", '{"ra'), 0, "the run had ended"),
    (CSV, lambda task, run: os.truncate(run / "journal.sqlite", 6000), 2, "restore the file from a copy"),
    (REPORT, lambda task, run: (run / "report.html").unlink(), 0, "report.html is gone; `tunesmith resume "),
    (("export", "{run}/best", *T4), nothing, 2, "did you mean "),
    (("export", "{run}", "--as", "torch"), lambda task, run: shutil.rmtree(run / "best"), 2, "best/ was removed"),
    (("export", "{run}", "--as", "torch", "--out", "{task}/new"), nothing, 2, "was tuned with opencl"),
    (("report", "{task}"), lambda task, run: (task / "journal.sqlite").touch(), 2, "tunesmith resume"),
    ((*CSV, "--markdown"), nothing, 2, "--csv and --markdown: they do not go together"),
    (("report", "{run}", "--force"), nothing, 2, "it goes with --csv"),
    (("report", "{run}/.."), nothing, 2, "/run?"),
    (("report", "{run}/none"), nothing, 2, "none is not the folder of a run: it does not exist; did you mean"),
    # Files that are named for output, and belong to others.
    (TUNE, full_folder, 2, "is not empty; name a new or an empty folder"),
    (("report", "{run}", "--csv", "{run}/journal.sqlite"), nothing, 2, "the folder of a run"),
    (("exhaust", "{task}", "--out", "/proc/x.json"), nothing, 2, "--out: /proc/x.json"),
    (("ablate", "{task}", "--model", "any", "--out", "{task}"), nothing, 2, "is not empty; name a new"),
)
MEASURED = (
    ((*CHECK, "--check-time", "2s"), nothing, 0, "largest error 0."),
    ((*BENCH, "--vs", "{task}/mine.cl"), written("mine.cl", HEAD + "{ *out = n; }"), 1, "mine.cl is at fault: wrong"),
    (TUNE, edited("baseline.cl", "factor * x", "factor + x"), 2, "baseline"),
    (CHECK, edited("baseline.cl", "factor * x", "factor + x"), 2, "its baseline is not right on 4096"),
    (
        ("tune", "{task}", "--run-dir", "{task}/new", "--evaluations", "100"),
        written("template.cl", HEAD + "{ int a = GROUP + ITEMS; undefined(a) }\n"),
        2,
        "does not compile with its default configuration (GROUP=16, ITEMS=1)",
    ),
    (TUNE, edited("template.cl", "if (k < n)", "if (n == 4096)"), 3, "is shown to be right on every workload"),
)
"""These take tens of seconds each."""


def contents(folder: Path) -> dict[Path, bytes]:
    """The files in and below `folder`."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, device: Any) -> Path:
    """A run that has ended, of a task beside it, on a device that is a formula."""
    folder = tmp_path_factory.mktemp("ended")
    shutil.copytree(SCALE_ADD.parent, folder / "own")
    return ended_run(folder / "ended", folder / "own" / "task.toml").folder


@pytest.mark.parametrize(
    ("asked", "change", "code", "named"),
    [
        *(pytest.param(*row, id=f"{row[0][0]}: {row[3]}") for row in ANSWERS),
        *(pytest.param(*row, id=f"{row[0][0]}: {row[3]}", marks=pytest.mark.slow) for row in MEASURED),
    ],
)
def test_a_mistake_has_its_sentence_and_its_exit_code(
    asked: Any, change: Any, code: int, named: str, ended: Path, tmp_path: Path, request: Any
) -> None:
    task, run = tmp_path / "task", tmp_path / "run"
    task.mkdir()
    write(task)
    shutil.copytree(ended, run)
    change(task, run)
    given, before = [word.format(task=task, run=run) for word in asked], contents(tmp_path)
    slow = request.node.get_closest_marker("slow") is not None
    done = request.getfixturevalue("command" if slow else "here")(*given)
    out, err = done.stdout, done.stderr
    assert done.returncode == code and named in " ".join((out + err).split()), err
    assert "Traceback" not in err and "bug in Tunesmith" not in err
    if code == 2:
        assert all(path.read_bytes() == data for path, data in before.items())
        assert out == "" and err.strip().splitlines()[-1].startswith("tunesmith: ") and err.strip().endswith((".", "?"))
        # What is only found by measuring is found by a run that has begun.
        assert not (task / "new").exists() or change is full_folder or slow


@pytest.mark.parametrize("command", ["space", "tune", "check"])
def test_without_a_device_only_the_tasks_own_backends_are_spoken_of(here: Any, monkeypatch: Any, command: str) -> None:
    for name in ("pyopencl", "cuda.bindings.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    for task, words in (
        (DATA / "scale_add", "has sources for opencl: the package pyopencl is not"),
        ("gemm", "cuda13"),
    ):
        done = here(command, task)
        others = () if task == "gemm" else ("NVIDIA", "NVML", "--target")
        assert done.returncode == EXIT_MISTAKE and done.stdout == ""
        assert words in done.stderr and not any(word in done.stderr for word in others), done.stderr


@pytest.fixture
def folder(tmp_path: Path, device: Any) -> Path:
    write(tmp_path)
    return tmp_path


def test_interruptions_are_said_and_the_unexpected_is_in_a_file(here: Any, monkeypatch: Any, tmp_path: Path) -> None:
    def broken() -> None:
        raise ends[0]

    ends = [KeyboardInterrupt()]
    monkeypatch.setattr("tunesmith.cli.commands.listing.library_tasks", broken)
    done = here("tasks")
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, "\nInterrupted.\n")
    ends[0] = RuntimeError("std::bad_cast")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = here("tasks")
    told = "tunesmith: This is a bug in Tunesmith: RuntimeError: std::bad_cast. Details are in "
    assert done.returncode == 70 and done.stderr.startswith(told) and "Traceback" not in done.stderr
    (log,) = tmp_path.glob("tunesmith-crash-*.log")
    assert str(log) in done.stderr and "in broken" in log.read_text()
    done = here("--debug", "tasks")
    assert done.returncode == 70 and "Traceback" in done.stderr


def test_standard_streams_may_be_closed_or_full(environment: dict[str, str]) -> None:
    full = "tunesmith: Standard output cannot be used: No space left on device; name another.\n"
    for streams, code, said in ((">&-", 0, ""), ("<&- >&- 2>&-", 0, ""), (">/dev/full", 2, full)):
        line = f'exec "$0" -m tunesmith.cli.main tasks {streams}'
        done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_a_run_without_result_has_a_code_and_a_report(tmp_path: Path, device: Any, monkeypatch: Any, here: Any) -> None:
    """On a simulated device; what a real one says of a wrong kernel is tested with the pool."""

    def evaluate(_: SimulatedPool, request: EvaluationRequest) -> Evaluation:
        if not request.config:
            return measured(request)
        wrong = WrongResult("mismatch", "out", "out[0] is 1, not 2")
        return Evaluation(request.template.id, request.config, dict.fromkeys(request.workloads, wrong))

    simulate_device(monkeypatch)
    measured, whole = SimulatedPool()._evaluate, SimulatedPool._evaluate
    monkeypatch.setattr(SimulatedPool, "_evaluate", evaluate)
    nothing = ("no valid configuration was found", "wrong_result 3", "out[0] is 1, not 2")
    unmeasured = ("no configuration was measured", "0 of 3 evaluations", "ended by the time limit")
    for limit, code, words in (("1h", EXIT_NOTHING, nothing), ("0.001s", EXIT_UNMEASURED, unmeasured)):
        run = tmp_path / limit
        options = ["--evaluations", "3", "--rounds", "1", "--time-limit", limit, "--run-dir", run]
        done = here("tune", DATA / "scale_add" / "task.toml", *options)
        assert done.returncode == code and all(word in done.stdout for word in words) and "Code:" not in done.stdout
        assert "Traceback" not in done.stderr
        assert (run / "report.html").is_file() and not (run / "best").exists()

    def fault(*_: Any, **__: Any) -> Any:
        raise TunesmithError("Task scale_add: its baseline is not right on 1000, task.")

    monkeypatch.setattr(SimulatedPool, "_evaluate", whole)
    monkeypatch.setattr(SimulatedPool, "examine", fault)
    task = DATA / "scale_add" / "task.toml"
    for name, allowed, code in (("refused", (), EXIT_UNEXAMINED), ("allowed", ("--allow-unexamined",), EXIT_DONE)):
        options = ["--evaluations", 3, "--rounds", 1, "--run-dir", tmp_path / name, "--json", *allowed]
        done = here("tune", task, *options)
        assert done.returncode == code and str(tmp_path / name) in done.stdout


def test_references_that_fail_or_print_disturb_nothing(folder: Path, monkeypatch: Any, capfd: Any) -> None:
    from tunesmith.actors import ray_cluster as cluster

    write(folder, "return {'out': factor * x * np.nan}")
    monkeypatch.setattr(cluster, "cluster", lambda **_: pytest.fail("a cluster was started"))
    with pytest.raises(TaskError, match="the reference scale returns nan at out"):
        tune(folder / "task.toml", run_dir=folder / "run", evaluations=1, backend="opencl")
    assert not (folder / "run").exists()
    write(folder, "print('hello from the reference'); return {'out': factor * x}")
    wrong = folder / "wrong.cl"
    wrong.write_text((folder / "baseline.cl").read_text().replace("factor *", "factor +"))
    with pytest.raises(SystemExit) as ended:
        main(["check", str(folder), "--source", str(wrong), "--json"])
    assert ended.value.code == 1 and json.loads(capfd.readouterr().out)["reason"] == "mismatch"


@pytest.mark.slow
def test_a_hanging_reference_ends_bench_and_delays_nobody(folder: Path, command: Any, environment: Any) -> None:
    other = folder / "other"
    other.mkdir()
    write(other, f"open({str(other / 'called')!r}, 'w').close(); time.sleep(10000)")
    told = "the reference scale has not returned for 2 s"
    done = command("bench", other, "--reference-deadline", 2)
    assert done.returncode == 2 and told in done.stderr and done.stdout == ""
    (other / "called").unlink()
    program = [sys.executable, "-m", "tunesmith.cli.main"]
    arguments = ["tune", str(other), "--run-dir", str(other / "run"), "--reference-deadline", "1000"]
    nowhere = subprocess.DEVNULL
    hanging = subprocess.Popen([*program, *arguments], env=environment, stdout=nowhere, stderr=nowhere)
    try:
        while not (other / "called").exists():
            assert hanging.poll() is None
            time.sleep(0.05)
        done = command("tune", folder, "--run-dir", folder / "run", "--evaluations", 1, "--rounds", 1)
        assert done.returncode == 0, done.stderr
        assert "waiting for the device" not in done.stderr and hanging.poll() is None
    finally:
        hanging.terminate()
        hanging.wait()
