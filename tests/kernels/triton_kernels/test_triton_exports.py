"""A finished run of a Triton task leaves as a table, as a device's file, and as Triton's own autotune cache.

Triton itself reads what was written, in processes of its own, under a stand-in for a driver: it compiles, and launches
nothing. The run's times are invented.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cuda_runs import cuda_context

from tunesmith.graph.journal.events import Compared, FinalistResult, RooflineMeasured, ShapeCompared, Winner
from tunesmith.graph.results.best import altered_files, export_best
from tunesmith.graph.results.exports import export_run
from tunesmith.graph.roles.verdict import build_verdict
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.limits import as_triton
from tunesmith.hw.roofline import Roofline
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.measure.timing import compare
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.triton.exports import config_line, device_files, fixed_values, kernel_body

triton = pytest.importorskip("triton", reason="Triton is not installed")
tuned = importlib.import_module("tunesmith.kernels.triton.tuned")
SCALING = Path(__file__).resolve().parents[2] / "data" / "scaling"
BODY = (SCALING / "kernel.py").read_text().partition("@triton.jit\n")[2]
HEAD = "import triton\nimport triton.language as tl\n\n\n"
MODEL = (
    HEAD
    + """import os


def fits(configs, named, **others):
    return [one for one in configs if one.kwargs["BLOCK"] <= named["x_ptr"].shape[0]]


LIST = [triton.Config({"BLOCK": 64, "UNROLL": 1}, num_warps=4), triton.Config({"BLOCK": 128, "UNROLL": 1}, num_warps=2)]
print("imported")


@triton.autotune(configs=LIST, key=["n"], prune_configs_by={"early_config_prune": fits})
@triton.jit
"""
    + BODY.replace("    at = tl", "    # its place\n    at = tl", 1)
)
GENERAL: dict[str, Any] = {"BLOCK": 256, "num_warps": 2}
LARGE: dict[str, Any] = {"BLOCK": 1024, "num_warps": 8}
READER = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget

class Driver:
    def get_current_target(self): return GPUTarget("cuda", ARCH, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0
    def get_benchmarker(self): raise SystemExit("it is being timed")

class Array:
    def __init__(self, n, dtype="float16"): self.dtype, self.shape = f"torch.{dtype}", (n,)
    def data_ptr(self): return 0

triton.runtime.driver.set_active(Driver())
sys.path.insert(0, ".")
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in which n4096 and n65536 have a winner of their own, n1000 the general one, and n64 the baseline."""
    task = load_task(str(SCALING))
    template, winners, found = task.sources("triton").templates[0], list[Winner](), list[Compared]()
    with cuda_context(tmp_path / "run", task, as_triton(resolve_target("sm_90"))) as context:
        winners += [Winner(template=template.id, config=one) for one in (GENERAL, LARGE)]
        gains = {"n4096": (0.8, 0.5), "n1000": (0.9, 2.0), "n65536": (0.9, 0.6), "n64": (1.1, 3.0)}
        for name, ratios in gains.items():
            seen = [compare([[ratio * 2e-6] * 3] * 5, [[2e-6] * 3] * 5) for ratio in ratios]
            pairs = zip(winners, seen, strict=True)
            entries = tuple(FinalistResult(**one.model_dump(), comparison=ratio) for one, ratio in pairs)
            found.append(Compared(workload=name, entries=entries))
            context.journal.append(ShapeCompared(workload=task.workload(name), fitted=True, entries=entries))
        context.journal.append(RooflineMeasured(roofline=Roofline()))
        export_best(context, tmp_path / "run" / "best", build_verdict(context, found, winners, {}))
    return tmp_path / "run"


def ask(folder: Path, program: str, arch: int = 90, **environment: str) -> Any:
    """What a program that prints JSON last says, in a process of its own in `folder`."""
    text = READER.replace("ARCH", str(arch)) + program
    given = {**os.environ, "TRITON_CACHE_DIR": str(folder / "another-cache"), **environment}
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, env=given, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_best_holds_sources_and_tables_and_nothing_of_cuda(run: Path, tmp_path: Path) -> None:
    best = run / "best"
    names = {str(path.relative_to(best)) for path in best.rglob("*") if path.is_file()}
    device = "configs/scaling,device_name=a_test_s_GPU.json"
    tables = {"dispatch.json", "reference.py", "SHA256SUMS", "tuned.py", "configs.txt", device}
    assert names == tables | {f"{name}/kernel-float16.py" for name in ("baseline", "general", "n4096")}
    assert not altered_files(best)
    content = json.loads((best / device).read_text())
    assert content["4096"] == content["65536"] == LARGE and content["1000"] == GENERAL
    assert content["64"] == {"BLOCK": 64, "num_warps": 4}, "nothing is faster than the author's numbers there"
    assert list(content) == ["64", "1000", "4096", "65536"], "the nearest batch is looked for in order"
    text = (run / "best" / "configs.txt").read_text()
    found = eval(f"[{text}\n]", {"triton": triton})
    assert [(one.kwargs, one.num_warps) for one in found] == [
        ({"BLOCK": 256}, 2),
        ({"BLOCK": 1024}, 8),
        ({"BLOCK": 64}, 4),
    ]
    assert "n4096, n65536" in text
    with pytest.raises(TunesmithError, match="was tuned with triton"):
        export_run(run, "torch")
    with pytest.raises(TunesmithError, match="no file"):
        export_run(run, "triton-cache")
    cache = exported(run, MODEL.replace('key=["n"]', "key=[]"), tmp_path / "production")
    [file] = cache.glob("*/scale.autotune.json")
    [[config, _]] = json.loads(file.read_text())["configs_timings"]
    assert config["kwargs"]["BLOCK"] == 256 and config["num_warps"] == 2
    assert "n4096, n1000, n65536" in (cache / "notes.txt").read_text()


def test_tuned_py_chooses_by_shape_and_by_the_rule_and_never_times(run: Path) -> None:
    shutil.copyfile(run / "best" / "tuned.py", run / "tuned.py")
    (run / "served.py").write_text(
        MODEL.replace("triton.autotune(", "tuned(").replace("import os", "from tuned import tuned")
    )
    program = """
from served import scale
def served(n, *, grid=lambda META: (triton.cdiv(n, META["BLOCK"]),), dtype="float16", **more):
    made = scale.run(Array(n, dtype), Array(n, dtype), 1.5, n, 7, grid=grid, warmup=True, **more)
    return [made.metadata.num_warps, max(map(int, re.findall(r"tensor<(\\d+)x", made.asm["ttir"])))]
cases = [served(4096), served(1000), served(64), served(131072), served(4096, dtype="float32"),
         served(4096, grid=(64,)), served(4096, UNROLL=2)]
print(json.dumps(cases))
"""
    large, general, first = [8, 1024], [2, 256], [4, 64]
    drawn = ask(run, program)
    # A grid of numbers, and a constant that was another one in the tuning, are calls that were not tuned.
    assert drawn[:3] == [large, general, first] and drawn[5:] == [first, first]
    rule = json.loads((run / "best" / "dispatch.json").read_text())["rule"]
    assert "test" in rule and drawn[3] == large, "a shape that nobody measured gets what the rule says"
    assert ask(run, program, arch=80) == [first] * 7, "a table is for one architecture"
    shutil.copyfile(run / "best" / "tuned.py", run / "tuned.py")
    (run / "plain.py").write_text(HEAD + "from tuned import tuned\n\n\n@tuned()\n@triton.jit\n" + BODY)
    program = """
from plain import scale
def warps(n, **more):
    grid = lambda META: (triton.cdiv(n, META["BLOCK"]),)
    made = scale.run(Array(n), Array(n), 1.5, n, 7, grid=grid, warmup=True, BLOCK=32, UNROLL=1, **more)
    return made.metadata.num_warps
print(json.dumps([warps(4096), warps(64), warps(64, num_warps=1)]))
"""
    assert ask(run, program) == [8, 4, 1]


def exported(run: Path, model: str, folder: Path, package: str = "") -> Path:
    """The folder of Triton's cache for the kernel of a file with the text `model`."""
    place = folder / package if package else folder
    place.mkdir(parents=True, exist_ok=True)
    if package:
        (place / "__init__.py").touch()
    (place / "model.py").write_text(model)
    return export_run(run, "triton-cache", folder / "cache", kernel=f"{place / 'model.py'}:scale")


READ = """
from PLACE import scale
answers = []
for n in (4096, 1000, 65536):
    scale.run(Array(n), Array(n), 1.5, n, 7, grid=(1,), warmup=True)
    answers.append({**scale.best_config.kwargs, "num_warps": scale.best_config.num_warps})
print(json.dumps(answers))
"""


@pytest.mark.parametrize("package", ["deep", pytest.param("", marks=pytest.mark.slow)])
def test_triton_takes_from_its_cache_and_times_nothing(run: Path, tmp_path: Path, package: str) -> None:
    relative = "from .numbers_of_mine import LIST as _\n" if package else ""
    folder = tmp_path / "production"
    if package:
        (folder / package).mkdir(parents=True)
        (folder / package / "numbers_of_mine.py").write_text("LIST = []\n")
    cache = exported(run, relative + MODEL, folder, package)
    assert len(list(cache.glob("*/scale.autotune.json"))) == 3
    # 64 elements: the pruning of the kernel's own list leaves one configuration.
    assert "n64 has no entry: its pruning leaves one" in (cache / "notes.txt").read_text()
    program = READ.replace("PLACE", f"{package}.model" if package else "model")
    given = {"TRITON_CACHE_DIR": str(cache), "TRITON_CACHE_AUTOTUNING": "1"}
    wanted = [{"BLOCK": 1024, "UNROLL": 1, "num_warps": 8}, {"BLOCK": 256, "UNROLL": 1, "num_warps": 2}]
    assert ask(folder, program, **given) == [*wanted, wanted[0]]
    # Any edit of the file above the kernel is another key, and without an entry Triton times its list.
    place = folder / package / "model.py"
    place.write_text("\n" + place.read_text())
    with pytest.raises(AssertionError, match="it is being timed"):
        ask(folder, program, **given)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("factor * tl.load", "tl.load"), "the kernel.s text is not that of"),
        (("@triton.autotune(configs=LIST", "@(lambda **_: lambda f: f)(configs=LIST"), "take tuned.py"),
        (("LIST = [", "LIST = [["), "SyntaxError"),
        (("1}, num_warps=4)", "1}, num_warps=4, pre_hook=print)"), "pre_hook"),
        (("import os", "import nothing_of_this_name"), "No module named 'nothing_of_this_name'"),
        (('"UNROLL": 1}', '"UNROLL": 1, "SPLIT": 1}'), "no value of SPLIT"),
        (("configs=LIST", "configs=LIST[:1]"), "one configuration"),
        (('key=["n"]', 'key=["n", "rows"]'), "does not tell rows"),
    ],
)
def test_what_cannot_be_written_is_a_sentence(run: Path, tmp_path: Path, edit: tuple[str, str], said: str) -> None:
    assert edit[0] in MODEL
    with pytest.raises(TunesmithError, match=said):
        exported(run, MODEL.replace(*edit), tmp_path / "production")
    assert not (tmp_path / "production" / "cache").exists()


def test_tables_kernels_and_device_files_are_read_as_tasks_are() -> None:
    names = {dtype: dtype for dtype in DTYPES}
    for text in ("ceil_div(n, 3) * round_up(n, 16) + log2(8)", "is_pow2(n + 28)", "abs(min(n, 3)) + floor(n / 8)"):
        assert eval(text, vars(tuned), {"n": 100}) == parse(text).evaluate({"n": 100})
    assert {dtype: tuned.sizeof(dtype) for dtype in DTYPES} == {dtype: kind.size for dtype, kind in DTYPES.items()}
    assert parse("sizeof(float16)").evaluate(names) == tuned.sizeof("float16")
    assert fixed_values("FIXED = {'A': 1, 'T': tl.float16, 'p': None}") == {"A": 1, "p": None}
    other = BODY.replace('"""Of n elements."""', "# Of n elements.\n    pass")
    commented = BODY.replace("    at =", "\n    # where\n    at =", 1)
    assert (
        kernel_body(BODY, "scale") == kernel_body("@triton.jit\n" + commented, "scale") != kernel_body(other, "scale")
    )
    assert config_line({"num_stages": 3, "A": True}) == "triton.Config({'A': True}, num_stages=3)"
    rows = [
        {"folder": "general", "sizes": {"M": m, "N": n, "E": 8}, "types": {"T": dtype}}
        for m in (16, 1)
        for n in (7168, 4096)
        for dtype in ("float16", "bfloat16")
    ]
    about = {"task": "moe", "device": "NVIDIA H200", "shapes": [*rows, {**rows[0], "folder": "rewritten"}]}
    found = dict(device_files(about, {"general": {"BLOCK_SIZE_M": 16, "num_stages": 4}}))
    assert len(found) == 4
    assert found["N=7168,E=8,device_name=NVIDIA_H200,dtype=bfloat16.json"] == {
        "1": {"BLOCK_SIZE_M": 16, "num_stages": 4},
        "16": {"BLOCK_SIZE_M": 16, "num_stages": 4},
    }
