"""What a newcomer did wrong in the first hour and what the program says to it: each mistake once ended in a traceback,
in a hang, in the blame of somebody else, or went by without a word.

As a script it runs all of them as commands and prints a table of messages and exit codes:

    PYTHONPATH=. python tests/cli/test_mistakes_table.py [--all]

--all: also those that measure, which take tens of seconds each and are marked slow here.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scale_task import HEAD, edit, write

from tunesmith.cli.main import main

DATA = Path(__file__).resolve().parent.parent / "data" / "scale_add"
CHECK = ("check", "{task}", "--source", "{task}/baseline.cl", "--reference-deadline", "2")
TUNE = ("tune", "{task}", "--run-dir", "{task}/new", "--evaluations", "4", "--rounds", "1")
MANY = ("tune", "{task}", "--run-dir", "{task}/new", "--evaluations", "100")
BENCH = ("bench", "{task}", "--reference-deadline", "2")
SPACE = ("space", "{task}")
REPORT = ("report", "{run}")
RESUME = ("resume", "{run}", "--more", "1")
CSV = ("report", "{run}", "--csv", "{task}/table.csv")


def reference(body: str) -> Callable[[Path, Path], None]:
    return lambda task, run: write(task, body)


def edited(file: str, old: str, new: str) -> Callable[[Path, Path], None]:
    return lambda task, run: edit(task, file, old, new)


def summary(text: str) -> Callable[[Path, Path], None]:
    return lambda task, run: (run / "summary.json").write_text(text) and None


def without(*names: str) -> Callable[[Path, Path], None]:
    def remove(task: Path, run: Path) -> None:
        for name in names:
            (run / name).unlink(missing_ok=True)

    return remove


def journal(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], None]:
    def damage(task: Path, run: Path) -> None:
        path = run / "journal.sqlite"
        path.write_bytes(change(path.read_bytes()))

    return damage


def row(task: Path, run: Path) -> None:
    connection = sqlite3.connect(run / "journal.sqlite", isolation_level=None)
    connection.execute("DROP TRIGGER events_stay")
    connection.execute("UPDATE events SET data = '{}' WHERE kind = 'evaluation'")
    connection.close()


def full_folder(task: Path, run: Path) -> None:
    (task / "new").mkdir()
    (task / "new" / "thesis.tex").touch()


def finished(folder: Path) -> Path:
    """A run that has ended, of a task beside it, on a device that is a formula."""
    from simulated_pool import simulate_device

    from tunesmith.graph import tune

    shutil.copytree(DATA, folder / "own")
    path, ended = folder / "own" / "task.toml", folder / "ended"
    with pytest.MonkeyPatch.context() as patch:
        simulate_device(patch)
        tune(path, run_dir=ended, backend="opencl", strategy="random", evaluations=3, rounds=1, wisdom=False)
    return ended


def edited_since(task: Path, run: Path) -> None:
    """A source of the run's task was edited after it."""
    shutil.rmtree(run)
    shutil.copytree(finished(task), run)
    with (task / "own" / "template.cl").open("a") as file:
        file.write("// a remark\n")


def parameter(text: str) -> Callable[[Path, Path], None]:
    return edited("template.toml", '{ name = "ITEMS", values = [1, 4] }', text)


def source(text: str) -> Callable[[Path, Path], None]:
    return lambda task, run: (task / "mine.cl").write_text(text) and None


LONG, H200, FAST = "a" * 300, ("space", "gemm", "--target", "h200"), "fast_math = true"
FACTOR = '{ name = "factor", role = "scalar", dtype = "float32", value = "1.5" },'
SIZE = '{ name = "n", role = "scalar", dtype = "int32", value = "n" },'
FAR = edited("template.toml", '"GROUP", values = [16, 64]', '"GROUP", values = [16, 512], default = 512')
NOBODY = ("tune", "{task}", "--run-dir", "~nobody-here/run")
MINE = ("check", "{task}", "--source", "{task}/mine.cl")


@dataclass(frozen=True)
class Case:
    """what: was done; was: what came of it once; code, told: what comes of it now; slow: it measures."""

    what: str
    was: str
    command: tuple[str, ...]
    code: int
    told: str
    before: Callable[[Path, Path], None] = lambda task, run: None
    slow: bool = False


SLEEPS, DIES = "the reference scale has not returned for 2 s", "the reference scale ends the process that calls it"
DAMAGED, ROW = "summary.json is damaged", "is damaged or of another version"
CASES = [
    # The reference hangs, dies or is no measure.
    Case("reference sleeps, check", "blamed the kernel, 21 s", CHECK, 2, SLEEPS, reference("time.sleep(9999)")),
    Case(
        "reference sleeps, tune",
        "hung, and all other tunings with it",
        (*TUNE, "--reference-deadline", "2"),
        2,
        SLEEPS,
        reference("time.sleep(9999)"),
    ),
    Case("reference sleeps, bench", "hung", BENCH, 2, SLEEPS, reference("time.sleep(9999)")),
    Case(
        "reference sleeps at its import",
        "hung",
        CHECK,
        2,
        SLEEPS,
        edited("reference.py", "import numpy as np", "import numpy as np\ntime.sleep(9999)"),
    ),
    Case("reference ends by sys.exit", "blamed the kernel", CHECK, 2, DIES, reference("sys.exit(1)")),
    Case("reference ends by os._exit", "blamed the kernel", CHECK, 2, DIES, reference("os._exit(0)")),
    Case("reference crashes, check", "blamed the kernel", CHECK, 2, "SIGSEGV", reference("os.kill(os.getpid(), 11)")),
    Case("reference crashes, tune", "blamed a worker", TUNE, 2, "SIGSEGV", reference("os.kill(os.getpid(), 11)")),
    Case("reference gives nan", "blamed the baseline", TUNE, 2, "returns nan", reference("return {'out': x * np.nan}")),
    Case("reference gives complex", "raw warning", CHECK, 2, "complex numbers", reference("return {'out': x + 1j}")),
    Case(
        "reference is random",
        "blamed the kernel",
        CHECK,
        2,
        "two different results",
        reference("return {'out': np.random.rand(n)}"),
    ),
    Case(
        "reference writes its input",
        "blamed the kernel",
        CHECK,
        2,
        "writes its argument x",
        reference("x *= factor; return {'out': x}"),
    ),
    Case(
        "reference gives float32",
        "taken",
        CHECK,
        2,
        "float32: return float64",
        reference("return {'out': (factor * x).astype(np.float32)}"),
    ),
    Case("reference raises", "named", CHECK, 2, "raises ValueError: my own", reference("raise ValueError('my own')")),
    Case(
        "reference prints, check --json",
        "JSON did not parse",
        (*CHECK, "--json"),
        0,
        '"accepted"',
        reference("print('hello'); return {'out': factor * x}"),
        True,
    ),
    # What is wrong in a task is found when it is loaded.
    *(
        Case(
            f"scalar beyond its type, {command[0]}",
            "traceback",
            command,
            2,
            "int32 holds",
            edited("task.toml", 'dtype = "int32", value = "n"', 'dtype = "int32", value = "2**40"'),
        )
        for command in (SPACE, CHECK, BENCH, TUNE)
    ),
    *(
        Case(
            f"grid of 10**18, {command[0]}",
            "traceback after 84 s",
            command,
            2,
            "must be a whole number from 1 to",
            edited("task.toml", '"ceil_div(n, 64)"', '"10**18"'),
        )
        for command in (SPACE, TUNE)
    ),
    Case(
        "template's grid of 10**18",
        "traceback",
        TUNE,
        2,
        "no feasible configuration",
        edited("template.toml", "ceil_div(n, GROUP * ITEMS)", "10**18"),
    ),
    Case(
        "rtol = inf",
        "accepted wrong kernels",
        SPACE,
        2,
        "an infinite tolerance accepts every result",
        edited("task.toml", "rtol = 1e-5", "rtol = inf"),
    ),
    Case(
        "atol = 1e300",
        "accepted wrong kernels",
        SPACE,
        2,
        "would accept zeros for out",
        edited("task.toml", "atol = 1e-5", "atol = 1e300"),
    ),
    Case(
        "rtol = 1.5",
        "accepted wrong kernels",
        SPACE,
        2,
        "accepts a result of zeros",
        edited("task.toml", "rtol = 1e-5", "rtol = 1.5"),
    ),
    Case(
        "a value of 23 digits",
        "ended the run in mid-search",
        SPACE,
        0,
        "2 of 4",
        parameter('{ name = "ITEMS", values = [1, 99999999999999999999999] }'),
    ),
    Case(
        "constraint divides by zero",
        "no file, no values",
        SPACE,
        2,
        "modulo by zero (GROUP=16, ITEMS=1)",
        edited("template.toml", "GROUP * ITEMS <= 256", "GROUP // (ITEMS - 1) > 1"),
    ),
    Case(
        "constraint compares with text",
        "no file, no values",
        SPACE,
        2,
        "constraint 1: In the expression `GROUP < 'a'`",
        edited("template.toml", "GROUP * ITEMS <= 256", "GROUP < 'a'"),
    ),
    Case(
        "constraint is no comparison",
        "always true",
        SPACE,
        2,
        "is not a condition",
        edited("template.toml", "GROUP * ITEMS <= 256", "GROUP * ITEMS"),
    ),
    Case(
        "grid that does not divide",
        "exit 0 without a result",
        SPACE,
        0,
        "none of them is feasible",
        edited("template.toml", "ceil_div(n, GROUP * ITEMS)", "n / (GROUP * ITEMS)"),
    ),
    Case(
        "parameter called for",
        "every evaluation failed",
        SPACE,
        2,
        "reserved word",
        parameter('{ name = "ITEMS", values = [1, 4] }, { name = "for", values = [1, 2] }'),
    ),
    Case(
        "parameter that nothing uses",
        "searched",
        SPACE,
        2,
        "neither the source nor the launch uses it",
        parameter('{ name = "ITEMS", values = [1, 4] }, { name = "SPARE", values = [1, 2] }'),
    ),
    Case(
        "values of several kinds",
        "'the values repeat'",
        SPACE,
        2,
        "parameter ITEMS",
        parameter('{ name = "ITEMS", values = [1, "two", 4.5, true] }'),
    ),
    Case(
        "misspelt key",
        "'but there is'",
        SPACE,
        2,
        "did you mean 'workloads'?",
        edited("task.toml", "[[workloads]]", "[[worklodas]]"),
    ),
    # Options.
    Case(
        "--target .",
        "'did you mean 9.0 or 8.9'",
        ("space", "{task}", "--target", "."),
        2,
        "No target is called '.': name one of",
    ),
    Case("--run-dir ''", "files in the current folder", ("tune", "{task}", "--run-dir", ""), 2, "the name is empty"),
    Case(
        "--run-dir of other files", "written into", TUNE, 2, "is not empty; name a new or an empty folder", full_folder
    ),
    Case("-h", "no such option", ("tune", "-h"), 0, "Usage: tunesmith tune"),
    Case(
        "no such option",
        "a style of its own",
        ("tune", "{task}", "--evaluation", "3"),
        2,
        "--evaluation: there is no such option; did you mean --evaluations",
    ),
    Case(
        "--seed of text",
        "a style of its own",
        ("tune", "{task}", "--seed", "soon"),
        2,
        "--seed: give a whole number.",
    ),
    # A run's files.
    *(
        Case(f"summary.json is {text}", "traceback", REPORT, 2, DAMAGED, summary(text))
        for text in ("{}", "[1]", '{"ratio": "x"}')
    ),
    Case("summary.json is {}, --json", "printed", (*REPORT, "--json"), 2, DAMAGED, summary("{}")),
    Case("summary.json is cut, resume", "written anew", ("resume", "{run}"), 0, "the run had ended", summary('{"ra')),
    Case("a row of the journal is {}, table", "traceback", CSV, 2, ROW, row),
    Case("a row of the journal is {}, resume", "traceback", RESUME, 2, ROW, row),
    Case(
        "journal is cut, table", "no remedy", CSV, 2, "restore the file from a copy", journal(lambda data: data[:6000])
    ),
    Case(
        "journal is cut, resume",
        "no remedy",
        RESUME,
        2,
        "restore the file from a copy",
        journal(lambda data: data[:6000]),
    ),
    Case("journal is empty, table", "exit 0, 0 rows", CSV, 2, "nothing to write", journal(lambda data: b"")),
    Case(
        "journal is garbage, table",
        "exit 0",
        CSV,
        2,
        "restore the file from a copy",
        journal(lambda data: b"never a database" * 99),
    ),
    Case(
        "report.html is gone",
        "named all the same",
        REPORT,
        0,
        "report.html is gone; `tunesmith resume ",
        without("report.html"),
    ),
    *(
        Case(
            f"{command[0]} of a run's {file}",
            "'is not a run'",
            (command[0], f"{{run}}/{file}", *command[1:]),
            2,
            "did you mean ",
        )
        for command in (("report",), ("export", "--as", "t4"), ("resume",))
        for file in ("summary.json", "best")
    ),
    Case(
        "export, best is gone",
        "'has not ended'",
        ("export", "{run}", "--as", "t4"),
        2,
        "best/ was removed, and `tunesmith resume",
        lambda task, run: shutil.rmtree(run / "best"),
    ),
    Case("report of no run", "one sentence", ("report", "{task}"), 2, "summary.json"),
    Case(
        "--csv with --markdown",
        "one was ignored",
        (*CSV, "--markdown"),
        2,
        "--csv and --markdown: they do not go together",
    ),
    Case("export of no folder", "'has no winners'", ("export", "{run}/nope", "--as", "t4"), 2, "There is no folder"),
    Case(
        "export of another folder",
        "'has no winners'",
        ("export", "{task}", "--as", "t4"),
        2,
        "is not the folder of a run; name a folder",
    ),
    # Files that are named for output, and are another's.
    *(
        Case(f"{' '.join(command[:1])} over {file}", "destroyed it, exit 0", (*command, file), 2, told)
        for command, file, told in (
            (("report", "{run}", "--csv"), "{run}/journal.sqlite", "the folder of a run"),
            (("report", "{run}", "--csv"), "{run}/best/table.csv", "the folder of a run"),
            (("report", "{run}", "--force", "--csv"), "{run}/summary.json", "the folder of a run"),
            (("report", "{run}", "--csv"), "{task}/task.toml", "exists, and this command did not write it"),
            (("exhaust", "{task}", "--out"), "{task}/reference.py", "exists; name another file, or replace it with"),
            (("export", "{run}", "--as", "t4", "--out"), "{task}", "is not empty; name a new or an empty folder"),
            (("export", "{run}", "--as", "t4", "--out"), "{run}/best/t4", "the folder of a run"),
            (("tune", "{task}", "--run-dir"), "{run}/best/new", "the folder of a run"),
            (("ablate", "{task}", "--model", "any", "--out"), "{task}", "is not empty; name a new or an empty folder"),
        )
    ),
    Case("--force without --csv", "did not exist", ("report", "{run}", "--force"), 2, "it goes with --csv"),
    # Tasks that are none, and what only `tune` refused.
    Case(
        "task is a template",
        "'give the function as FILE.py:FUNCTION'",
        ("tune", "{task}/template.toml"),
        2,
        "template.toml is a template and no task: give ",
    ),
    Case(
        "constraint leaves nothing, check",
        "right",
        ("check", "{task}"),
        2,
        "has no feasible configuration among",
        edited("template.toml", "GROUP * ITEMS <= 256", "GROUP * ITEMS > 100000"),
    ),
    Case(
        "misspelt key of a settings file",
        "a list of 40 keys",
        ("tune", "{task}", "--settings", "{task}/own.toml"),
        2,
        "own.toml: unknown key 'evaluation'; did you mean 'evaluations'?",
        lambda task, run: (task / "own.toml").write_text("evaluation = 3\n") and None,
    ),
    # Kernels.
    Case(
        "candidate is CUDA's, for OpenCL",
        "compiler's words",
        MINE,
        1,
        "rejected: compile_failed",
        source('extern "C" __global__ void scale(const float* x) {}\n'),
    ),
    Case("candidate prints", "hundreds of lines", MINE, 1, "rejected: ", source(HEAD + '{ printf("%d", n); }\n')),
    Case("source was edited, resume", "went on without a word", RESUME, 2, "--as-recorded", edited_since),
    Case(
        "baseline never ends, check",
        "silent for hours, with the device held",
        (*CHECK, "--run-deadline", "1"),
        2,
        "baseline of scale fails on the workload 4096: the run step exceeded its deadline of 1 s",
        edited("baseline.cl", "if (i < n)", "while (n); if (i < n)"),
    ),
    # What is wrong is named, where it is.
    Case(
        "shared_bytes without its parameter",
        "'has 4 parameters, but the task has 4 arguments'",
        CHECK,
        2,
        "takes one parameter more, the last",
        edited("template.toml", 'block = ["GROUP"]', 'block = ["GROUP"]\nshared_bytes = "64"'),
    ),
    Case(
        "local memory without shared_bytes",
        "'has 5 parameters'",
        CHECK,
        2,
        "give its bytes as `shared_bytes`",
        edited("template.cl", "int n)", "int n, __local float* scratch)"),
    ),
    Case(
        "arguments in another order",
        "found right",
        CHECK,
        2,
        "bring both into one order",
        edited("task.toml", f"{FACTOR}\n    {SIZE}", f"{SIZE}\n    {FACTOR}"),
    ),
    Case(
        "a list among values",
        "'give true or false'",
        SPACE,
        2,
        "item 1: give true or false, a whole number, a number or text in quotes, not [1, 4]",
        parameter('{ name = "ITEMS", values = [[1, 4], 16] }'),
    ),
    *(
        Case(
            f"{file} is empty",
            was,
            CHECK,
            2,
            f"{file} is empty",
            lambda task, run, file=file: (task / file).write_text("") and None,
        )
        for file, was in (
            ("template.cl", "'the text is empty'"),
            ("baseline.cl", "'the text is empty'"),
            ("reference.py", "the baseline was its own reference"),
            ("task.toml", "'give the function'"),
        )
    ),
    Case("default beyond a constraint, space", "no word", SPACE, 0, "The default, GROUP=512, ITEMS=1, is none", FAR),
    Case("default beyond a constraint, check", "no word", ("check", "{task}"), 0, "is not feasible: `GROUP", FAR),
    Case("default beyond a constraint, bench", "blamed --config", BENCH, 2, "name another with --config", FAR),
    Case(
        "max_registers of OpenCL",
        "ignored",
        SPACE,
        2,
        "key max_registers: it is for CUDA",
        edited("template.toml", "[launch]", 'max_registers = "32"\n\n[launch]'),
    ),
    Case("a kernel for a task", "'not valid TOML'", ("tune", "{task}/baseline.cl"), 2, "is not a task: give the task"),
    Case("lanes of an OpenCL device", "ignored", (*TUNE, "--lanes", "4"), 2, "--lanes: 4 is more than there can be"),
    Case(
        "a home that is not there", "a folder '~nobody-here'", (*NOBODY, "--evaluations", "1"), 2, "--run-dir: the home"
    ),
    Case("--target mi300", "'did you mean b300'", (*SPACE, "--target", "mi300"), 2, "targets are NVIDIA GPUs alone"),
    Case("--target sm_20", "'did you mean sm_120'", (*SPACE, "--target", "sm_20"), 2, "architectures known are sm_70"),
    Case(
        "init of Python", "a remark on macros", ("init", "{task}/reference.py"), 2, "is Python, and `init` reads CUDA"
    ),
    *(
        Case(
            f"T1 file: {text}",
            "a Python error's text",
            ("init", "{task}/t1.json"),
            2,
            told,
            lambda task, run, text=text: (task / "t1.json").write_text(text) and None,
        )
        for text, told in (
            ("[1]", "give a JSON object"),
            ('{"General": 1}', "the key KernelSpecification is missing"),
        )
    ),
    Case(
        "rules that do not apply",
        "nowhere to be seen",
        SPACE,
        0,
        "Rules that did not apply to the plain kernel: there is no loop to unroll",
        edited("task.toml", 'templates = ["template.toml"]', ""),
    ),
    *(
        Case(f"a name of 300 letters, {command[0]}", "a bug of ours", command, 2, "File name too long")
        for command in (
            ("report", LONG),
            ("resume", LONG),
            ("compare", LONG, "{run}"),
            ("export", LONG, "--as", "t4"),
            ("tune", "{task}", "--run-dir", LONG),
            ("tune", "{task}", "--prior", LONG),
        )
    ),
    Case("a command misspelt", "no such command", ("tuned", "{task}"), 2, "did you mean tune?"),
    Case(
        "a task in capitals", "a list of 13 names", ("space", "GEMM"), 2, "There is no task 'GEMM': did you mean gemm?"
    ),
    Case("--target of another backend", "ignored", (*H200, "--backend", "opencl"), 2, "the target h200 is for cuda"),
    Case(
        "--vs that does not compile", "'candidate'", (*BENCH, "--vs", "{task}/task.toml"), 2, "task.toml cannot be mea"
    ),
    Case(
        "a task as template",
        "a list of 13 keys",
        (*BENCH, "--template", "{task}/task.toml"),
        2,
        "task.toml is a task, not a template",
    ),
    Case(
        "a source as template",
        "'not valid TOML'",
        SPACE,
        2,
        "template.cl is not a template",
        edited("task.toml", '"template.toml"', '"template.cl"'),
    ),
    Case(
        "&& in a constraint",
        "'invalid syntax'",
        SPACE,
        2,
        "and `and`, `or`, `not`",
        edited("template.toml", "GROUP * ITEMS <= 256", "GROUP < 64 && ITEMS < 4"),
    ),
    Case(
        "a name misspelt in a constraint",
        "a list of 17 names",
        SPACE,
        2,
        "did you mean 'GROUP'?",
        edited("template.toml", "GROUP * ITEMS <= 256", "GRUOP <= 256"),
    ),
    Case(
        "fast_math = true", "'give text in quotes'", SPACE, 0, "4 of 4", edited("template.toml", "[la", f"{FAST}\n[la")
    ),
    Case(
        "static_shared_bytes below 0",
        "'several constraints together'",
        SPACE,
        2,
        "static shared memory is -4",
        edited("template.toml", "[launch]", "static_shared_bytes = -4\n[launch]"),
    ),
    Case(
        "template without a source",
        "'key source'",
        SPACE,
        2,
        "key source_file: it is missing",
        edited("template.toml", 'source_file = "template.cl"', ""),
    ),
    Case(
        "arithmetic of another name",
        "ignored",
        SPACE,
        2,
        "write 'float32' or leave it out",
        edited("task.toml", 'arithmetic = "float32"', 'arithmetic = "fp32"'),
    ),
    Case(
        "requires a number",
        "always true",
        SPACE,
        2,
        "key requires, item 1: `n` is not a condition",
        edited("task.toml", 'flops = "n"', 'flops = "n"\nrequires = ["n"]'),
    ),
    Case(
        "a list of sources for the baseline",
        "'[baseline.cl] cannot be read'",
        SPACE,
        0,
        "4 of 4",
        edited("task.toml", 'source_file = "baseline.cl"', 'source_file = ["baseline.cl"]'),
    ),
    Case(
        "arguments in another order, tune",
        "wrong results after a minute",
        TUNE,
        2,
        "bring both into one order",
        edited("template.cl", "float factor, int n", "int n, float factor"),
    ),
    # These measure.
    Case(
        "candidate is right",
        "'largest error 1.39' and accepted",
        ("check", "{task}", "--source", "{task}/baseline.cl"),
        0,
        "largest error 0.",
        slow=True,
    ),
    Case(
        "default does not compile",
        "spent the budget",
        MANY,
        2,
        "does not compile with its default configuration",
        lambda task, run: (
            (task / "template.cl").write_text(HEAD + "{ int a = GROUP + ITEMS; undefined(a) }\n") and None
        ),
        True,
    ),
    Case(
        "template wrong on held-out shapes",
        "exit 0",
        TUNE,
        3,
        "No configuration is right on every workload",
        lambda task, run: (
            (task / "template.cl").write_text(
                (task / "template.cl").read_text().replace("if (k < n)", "if (n == 4096)")
            )
            and None
        ),
        True,
    ),
]


def prepared(case: Case, folder: Path, ended: Path) -> list[str]:
    """The command line of a case, whose files are made in `folder`; ended: a run that has ended."""
    task, run = folder / "task", folder / "run"
    task.mkdir()
    write(task)
    shutil.copytree(ended, run)
    case.before(task, run)
    return [word.format(task=task, run=run) for word in case.command]


def contents(folder: Path) -> dict[Path, bytes]:
    """The files in and below `folder`."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def last_line(out: str, err: str) -> str:
    """What a reader sees last."""
    lines = [line for line in (err if err.strip() else out).splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, device: Any) -> Path:
    return finished(tmp_path_factory.mktemp("ended"))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.what, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]
)
def test_a_mistake_has_its_sentence_and_its_exit_code(
    case: Case, ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Any
) -> None:
    given = prepared(case, tmp_path, ended)
    before = contents(tmp_path)
    if case.slow:
        done = command(*given)
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        with pytest.raises(SystemExit) as exit_:
            main(given)
        out, err = capsys.readouterr()
        code = exit_.value.code
    assert code == case.code and case.told in " ".join((out + err).split()), err
    assert "Traceback" not in err and "bug in Tunesmith" not in err
    if code == 2:
        # A run that is resumed may have got entries before it came to the mistake.
        lost = [path for path, data in before.items() if path.read_bytes() != data]
        assert [path for path in lost if case.command[0] != "resume" or path.name != "journal.sqlite"] == []
        assert out == "" and last_line(out, err).startswith("tunesmith: ") and err.strip().endswith((".", "?"))


def print_table(cases: list[Case]) -> int:
    """Prints a table of `cases`; returns how many are not as they should be."""
    wrong = 0
    print("| mistake | was | exit | now |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        run = finished(Path(place))
        for number, case in enumerate(cases):
            folder = Path(place) / str(number)
            folder.mkdir()
            given = prepared(case, folder, run)
            program = [sys.executable, "-m", "tunesmith.cli.main", *given]
            done = subprocess.run(program, capture_output=True, text=True, check=False)
            out = done.stdout + done.stderr
            said = " ".join(out.split())
            right = done.returncode == case.code and case.told in said and "Traceback" not in said
            wrong += not right
            line = next((one for one in out.splitlines() if case.told and case.told in one), "")
            line = (line.strip() or last_line(done.stdout, done.stderr)).replace(str(folder), "...").replace("|", "\\|")
            note = "" if right else "NOT AS IT SHOULD BE: "
            print(f"| {case.what} | {case.was} | {done.returncode} | {note}{line} |", flush=True)
    return wrong


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "graph"))
    sys.exit(min(1, print_table([case for case in CASES if not case.slow or "--all" in sys.argv])))
