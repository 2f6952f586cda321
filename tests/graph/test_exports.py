"""best/ and exports of CUDA kernels, as far as a machine without a GPU can run them: the machine code that was
measured, and host code that launches on a driver which records its launches. With a GPU each export's own test
compares it with the reference."""

import ast
import ctypes
import hashlib
import importlib
import inspect
import json
import math
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_runs import LIMITS, ORIGIN, StubDriver, compared, cuda_context, write_cuda_run

from tunesmith import __version__
from tunesmith.cli.app import EXIT_MISTAKE
from tunesmith.graph.context import Context
from tunesmith.graph.dispatch import draw_shapes
from tunesmith.graph.journal.events import Verdict, Winner
from tunesmith.graph.results.best import _requirements, export_best
from tunesmith.graph.results.exports import Package, export_run
from tunesmith.graph.results.runtime import (
    ELEMENT_BYTES,
    STORAGE_TYPES,
    KernelChoice,
    KernelError,
    Kernels,
    Library,
    PreparedLaunch,
    compile_source,
    evaluate,
)
from tunesmith.graph.run import tune
from tunesmith.hw.errors import TunesmithError
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.build.artifact import Artifact, cache_key, open_cache
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.spec.dtypes import DTYPES
from tunesmith.kernels.spec.expression import parse
from tunesmith.kernels.spec.task import Workload, geometry
from tunesmith.kernels.spec.taskfile import load_task

pytestmark = pytest.mark.xdist_group("exports")
PROGRAM = Path(__file__).with_name("launch_header.cpp")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    """silu_and_mul, whose general configuration is slower than the baseline on the smallest of its three shapes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNESMITH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_cuda_run(tmp_path_factory.mktemp("cuda") / "run", "silu_and_mul", {"16x4096": 1.2})


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    return StubDriver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def shapes(package: Package) -> list[tuple[Workload, Any]]:
    """Measured and drawn shapes, with folder and geometry as Tunesmith itself has them."""
    measured, sources = package.about["shapes"], package.task.sources("cuda")
    own = [Workload(name=row["workload"], sizes=row["sizes"], types=row["types"]) for row in measured]
    rows = {str(row["sizes"]): row["folder"] for row in measured}
    found = []
    for shape in (*own, *draw_shapes(package.task, "gpu", 40, seed=1)):
        node = package.about["rule"]
        while "test" in node:
            node = node["yes" if parse(node["test"]).evaluate(shape.names) else "no"]
        folder = rows.get(str(shape.sizes), node["folder"])
        template = sources.baseline.template if folder == "baseline" else sources.templates[0]
        launch = geometry(template, template.default_config, shape)
        found.append((shape, (folder, launch.grid, launch.block, launch.shared_bytes)))
    return found


def test_the_runtime_chooses_what_tunesmith_would_launch(package: Package, shapes: list[tuple[Workload, Any]]) -> None:
    kernels = Kernels(package.best)
    for shape, expected in shapes:
        assert kernels.choose(("float16",), tuple(shape.sizes.values())) == expected
    assert {folder for _, (folder, *_) in shapes} == {"baseline", "general"}, "the smallest shape keeps the baseline"
    with pytest.raises(ValueError, match="silu_and_mul: there is no kernel for T = int8; there are kernels for"):
        kernels.choose(("int8",), (16, 4096))
    for known in map(load_task, ("gemm", "quantize_per_token", "stencil3x3")):
        template = known.sources("cuda").templates[0]
        for shape in draw_shapes(known, "gpu", 10, seed=2):
            names = template.default_config | shape.names
            for text in (*template.launch.grid, *template.launch.block, template.launch.shared_bytes):
                assert evaluate(text, names) == parse(text).evaluate(names)
    assert {name: kind.size for name, kind in DTYPES.items()} == ELEMENT_BYTES
    assert {name: kind.array.name for name, kind in DTYPES.items() if kind.array.name != name} == STORAGE_TYPES


def test_the_machine_code_is_loaded_if_whole_and_compiled_for_another_gpu(package: Package, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC and CUDA's headers come with the extra nvrtc")
    shutil.copytree(package.best, tmp_path / "best")
    kernels, types = Kernels(tmp_path / "best"), ("float16",)
    (file,) = (tmp_path / "best" / "general").glob("*.cubin")
    assert kernels.machine_code("general", types, "sm_90") == file.read_bytes()
    made = kernels.machine_code("general", types, "sm_80")
    assert made != file.read_bytes() and made.startswith(b"\x7fELF")
    with pytest.raises(KernelError, match=r"does not compile[\s\S]*error"):
        compile_source("nonsense", "sm_80", False, 0)
    file.write_bytes(b"\x7fELF")
    with pytest.raises(KernelError, match="is not the file that was exported"):
        kernels.machine_code("general", types, "sm_90")
    pytest.importorskip("pyopencl")
    buffers = {"input": SimpleNamespace(size=4), "out": SimpleNamespace(size=1 << 30)}
    words = r"silu_and_mul: input has 4 bytes, but the shape \(32, 10240\) of float16 takes 655360"
    with pytest.raises(ValueError, match=words):
        Kernels(package.best).enqueue(None, ("float16",), (32, 5120), buffers)
    with pytest.raises(ValueError, match="silu_and_mul has no argument scale; it has input, out, n, d"):
        Kernels(package.best).enqueue(None, ("float16",), (32, 5120), {**buffers, "scale": 2.0})


class CupyArray(np.ndarray[Any, Any]):
    """An array of CuPy, as far as the exported function asks, on the host."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, out: Any) -> None:
        out[...] = self + 1


def test_cupy_gets_the_arrays_and_the_stream(package: Package, stub: Any, tmp_path: Path, monkeypatch: Any) -> None:
    cuda = SimpleNamespace(
        runtime=SimpleNamespace(getDevice=lambda: 0),
        get_current_stream=lambda: SimpleNamespace(ptr=77),
        Device=nullcontext,
        Event=lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None),
        get_elapsed_time=lambda start, end: 0.5,
    )
    cupy = SimpleNamespace(cuda=cuda, empty=lambda shape, dtype: np.empty(shape, dtype).view(CupyArray))
    cupy.asarray = lambda array: np.copy(array).view(CupyArray)
    monkeypatch.setitem(sys.modules, "cupy", cupy)  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(export_run(package.folder, "cupy", tmp_path / "out"))  # type: ignore[no-untyped-call]
    module = importlib.import_module("silu_and_mul_cupy")
    module._KERNELS.driver = Library(str(stub.file))
    x, modules = np.ones((32, 10240), np.float16).view(CupyArray), stub.library.stub_modules()
    _, grid, block, shared = module._KERNELS.choose(("float16",), (32, 5120))
    for _ in range(2):
        # A thread that has not used the device has no context; the launch sees to it.
        stub.library.stub_new_thread()
        out = module.silu_and_mul(x)
        assert (out.shape, out.dtype) == ((32, 5120), np.float16)
        assert stub.last()[:8] == (*grid, *block, shared, 77)
        assert stub.arguments(4) == [*(ctypes.c_int32(one.ctypes.data).value for one in (x, out)), 32, 5120]
    module.silu_and_mul(np.ones((32, 8192), np.float16).view(CupyArray))
    assert stub.library.stub_modules() == modules + 1, "a kernel is loaded once"
    # So are arrays of NumPy, which come back with what the device has for them.
    host, made = np.ones((32, 10240), np.float16), np.zeros((32, 5120), np.float16)
    assert module._KERNELS.run(("float16",), (32, 5120), {"input": host, "out": made}) == 0.5
    assert stub.last()[:8] == (*grid, *block, shared, 77) and stub.arguments(4)[2:] == [32, 5120]
    assert (made.view(np.uint8) == 1).all()
    for wrong, words in (
        (x[0], r"input has 2 dimensions \(n, 2 \* d\), not 1"),
        (x[:, :7], r"input must have the shape \(n, 2 \* d\) with n = 32, d = 3, not \(32, 7\)"),
        (x[:, ::2], "input must be contiguous"),
    ):
        with pytest.raises(ValueError, match=f"silu_and_mul: {words}"):
            module.silu_and_mul(wrong)


def test_the_header_launches_the_same(package: Any, shapes: Any, stub: Any, tmp_path: Path, cuda_include: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    out = export_run(package.folder, "header", tmp_path / "out")
    command = ["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{out}", f"-isystem{cuda_include}"]
    linked = [f"-L{stub.folder}", "-lcuda", f"-Wl,-rpath,{stub.folder}", "-o", str(tmp_path / "main")]
    subprocess.run([*command, str(PROGRAM), *linked], check=True)
    asked = "\n".join(" ".join(map(str, shape.sizes.values())) for shape, _ in shapes)
    told = subprocess.run([tmp_path / "main"], input=asked, capture_output=True, text=True, check=True).stdout
    for (shape, (_, grid, block, shared)), line in zip(shapes, told.splitlines(), strict=True):
        assert list(map(int, line.split())) == [0, *grid, *block, shared, 0x1000, 0x2000, *shape.sizes.values()]
    assert f"commit of the task {ORIGIN.commit}." in (out / "silu_and_mul.hpp").read_text()


EXPLICIT = str(Path(__file__).resolve().parents[1] / "data" / "flat_scale" / "task.toml")
"""A task whose sizes no argument's shape tells."""


@pytest.fixture(scope="module", params=["fused_add_rmsnorm", "merge_attn_states", EXPLICIT])
def another(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return write_cuda_run(tmp_path_factory.mktemp("another") / "run", request.param, {}, most=1)


@pytest.mark.parametrize("form", ["header", "torch", "cupy", "hf-kernels"])
def test_each_form_compiles_and_its_readme_calls_its_function(form: str, another: Package, cuda_include: Path) -> None:
    package, out = another, export_run(another.folder, form)
    if form == "header":
        (header,) = out.glob("*.hpp")
        command = ["g++", "-std=c++11", "-fsyntax-only", f"-isystem{cuda_include}", "-xc++", str(header)]
        subprocess.run(command, check=True)
        return
    assert package.explicit_sizes == (["rows", "columns"] if package.name == "flat_scale" else [])
    for path in out.rglob("*.py"):
        compile(path.read_text(encoding="utf-8"), str(path), "exec")
    assert len([*out.rglob("test_*.py")]) == 1, "each form has its own test"
    readme = (out / "README.md").read_text("utf-8")
    [example] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (module,) = out.glob("build/torch-cuda/__init__.py" if form == "hf-kernels" else "*/__init__.py")
    nodes = ast.walk(ast.parse(module.read_text("utf-8")))
    [defined] = [one for one in nodes if isinstance(one, ast.FunctionDef) and one.name == package.name]
    assert f"`{package.name}({ast.unparse(defined.args)}) -> " in readme
    calls = [one for one in ast.walk(ast.parse(example)) if isinstance(one, ast.Call)]
    called = next(one for one in calls if ast.unparse(one.func).endswith(f".{package.name}"))
    bare: dict[str, Any] = {}
    exec(f"def bare({ast.unparse(defined.args)}): pass", bare)
    given = [ast.unparse(one) for one in called.args]
    inspect.signature(bare["bare"]).bind(*given, **{str(one.arg): one.value for one in called.keywords})


def test_an_export_says_where_the_kernels_come_from(package: Package, tmp_path: Path) -> None:
    out = export_run(package.folder, "hf-kernels", tmp_path / "out")
    text = (out / "README.md").read_text()
    assert "a test's GPU" in text and package.about["verdict"] in text and "Licence" in text
    variant = out / "build" / "torch-cuda"
    about, metadata = (json.loads((variant / f"{name}.json").read_text()) for name in ("provenance", "metadata"))
    assert (about["device"], about["compiler"], about["tunesmith"]) == ("a test's GPU", "NVRTC of a test", __version__)
    assert (about["commit"], about["command"]) == (ORIGIN.commit, ORIGIN.command)
    assert datetime.fromisoformat(about["tuned_at"]).year >= 2026
    kept = {path.read_bytes() for path in package.best.glob("*/*.cubin")}
    assert {path.read_bytes() for path in out.rglob("*.cubin")} == kept and len(kept) == 2
    assert metadata["backend"] == {"type": "cuda", "archs": ["9.0"]}
    assert metadata["id"].isidentifier() and f'register("{metadata["id"]}"' in (variant / "__init__.py").read_text()
    files = {str(path.relative_to(variant)) for path in variant.rglob("*") if path.is_file()}
    assert set(metadata["digest"]["files"]) == files - {"metadata.json"}
    folder = shutil.copytree(package.folder, tmp_path / "run")
    file = folder / "best" / "general" / "launch.json"
    before, sums = file.read_bytes(), folder / "best" / "SHA256SUMS"
    about = json.loads(before)
    file.write_text(json.dumps(about | {"requires": ["sizeof(float32) * d <= 20000", *about["requires"]]}))
    digests = [hashlib.sha256(text).hexdigest() for text in (before, file.read_bytes())]
    sums.write_text(sums.read_text().replace(*digests))
    text = (export_run(folder, "header") / "silu_and_mul.hpp").read_text()
    assert re.search(r"4LL \* d\W+20000LL", text)
    assert Kernels(folder / "best").choose(("float16",), (32, 5120)).folder == "baseline"


def test_mistakes_and_winners_edited_by_hand_are_a_sentence(package: Package, tmp_path: Path, here: Any) -> None:
    with pytest.raises(TunesmithError, match="is not empty; name a new"):
        export_run(package.folder, "torch", package.folder.parent)
    shutil.copyfile(package.folder / "journal.sqlite", tmp_path / "journal.sqlite")
    with pytest.raises(TunesmithError, match="has no winners to export"):
        export_run(tmp_path, "torch")
    for name, old, new in (
        ("dispatch.json", '"folder": "general"', '"folder": "../general"'),
        ("general/launch.json", '"sources"', '"source"'),
        ("general/kernel-float16.cu", "}", "} // mine"),
        ("baseline/launch.json", "", None),
    ):
        folder = shutil.copytree(package.folder, tmp_path / name.replace("/", "-"))
        path = folder / "best" / name
        if new is None:
            path.unlink()
        else:
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new))
        done = here("export", folder, "--as", "header")
        assert done.returncode == EXIT_MISTAKE and name in done.stderr, done.stderr
        assert done.stderr.endswith("writes them anew.\n")
    assert not [*tmp_path.rglob("*.hpp")]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "task"), [("torch", "fused_add_rmsnorm"), ("cupy", "silu_and_mul"), ("hf-kernels", "merge_attn_states")]
)
def test_on_a_gpu_an_exports_own_test_passes(form: str, task: str, tmp_path: Path) -> None:
    if form != "cupy":
        pytest.importorskip("torch")
    out = export_run(write_cuda_run(tmp_path / "run", task, {}, most=2).folder, form, tmp_path / "out")
    environment = {**os.environ, "PYTHONPATH": str(out)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(out)]
    subprocess.run(command, check=True, env=environment, cwd=out, timeout=600)


TASK = load_task("silu_and_mul")
SOURCES = TASK.sources("cuda")
TEMPLATE = SOURCES.templates[0]
CONFIG = TEMPLATE.default_config
WORKLOAD = next(one for one in TASK.workloads if "gpu" in one.devices or not one.devices)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TUNESMITH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def codes() -> dict[str, Artifact]:
    """The kernels' machine code, by folder of best/."""
    found = {}
    for folder, template in (("general", TEMPLATE), ("baseline", SOURCES.baseline.template)):
        made = open_compiler(LIMITS).compile(specialise(template, template.default_config, WORKLOAD.types))
        assert isinstance(made, Artifact)
        found[folder] = made
    return found


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with cuda_context(tmp_path / "run", TASK.model_copy(update={"workloads": (WORKLOAD,)})) as made:
        yield made


def export(context: Context, best: Path, code: str, baseline_code: str) -> dict[str, dict[str, Any]]:
    """the machine code's entries by folder, after a comparison in which code of these digests was timed."""
    compared(context, WORKLOAD.name, 1e-6, code, baseline_code)
    export_best(context, best, Verdict(general=Winner(template=TEMPLATE.id, config=CONFIG), sentence=""))
    found = {}
    for folder, seconds in (("general", 1e-6), ("baseline", 2e-6)):
        launch = json.loads((best / folder / "launch.json").read_text())["workloads"][WORKLOAD.name]
        assert launch["measured_seconds"] == pytest.approx(seconds)
        about = found[folder] = launch["machine_code"]
        assert about["file"].endswith(".cubin") and about["architecture"] == "sm_90"
        assert hashlib.sha256((best / folder / about["file"]).read_bytes()).hexdigest() == about["sha256"]
    return found


def test_code_comes_from_the_cache_and_then_from_the_export_before(context: Any, codes: Any, tmp_path: Path) -> None:
    cache = open_cache()
    for folder, template in (("general", TEMPLATE), ("baseline", SOURCES.baseline.template)):
        source = specialise(template, template.default_config, WORKLOAD.types)
        cache.put(cache_key(source, "sm_90", "NVRTC of a test"), codes[folder])
    digests = [codes[folder].code_digest for folder in ("general", "baseline")]
    found = export(context, tmp_path / "best", *digests)
    for folder, about in found.items():
        assert about["measured"] and about["sha256"].startswith(codes[folder].code_digest)
        assert about["compiler"] == "NVRTC of a test"
    shutil.rmtree(tmp_path / "cache")
    assert export(context, tmp_path / "best", *digests) == found


def test_where_the_cache_is_cleared_code_is_made_and_compared(context: Context, codes: Any, tmp_path: Path) -> None:
    measured = codes["general"]
    found = export(context, tmp_path / "best", measured.code_digest, "0123456789abcdef")
    assert found["general"]["measured"] and not found["baseline"]["measured"]
    # The program beside it loads what was measured, and compiles elsewhere with the same options.
    kernels, types = Kernels(tmp_path / "best"), (WORKLOAD.types["T"],)
    assert kernels.machine_code("general", types, "sm_90") == measured.code
    [how] = kernels.launches["general"]["sources"]
    source = (tmp_path / "best" / "general" / how["source"]).read_text()
    options = how["fast_math"], how["max_registers"] or 0
    assert instructions(compile_source(source, "sm_90", *options)) == instructions(measured.code)
    headers = "#include <mma.h>\n#include <cooperative_groups.h>\n"
    assert compile_source(headers + source, "sm_90", *options).startswith(b"\x7fELF")


def instructions(cubin: bytes) -> list[bytes]:
    """The sections that hold instructions: the rest of a cubin names files and the compiler's options."""
    offset, (size, count) = int.from_bytes(cubin[0x28:0x30], "little"), struct.unpack_from("<HH", cubin, 0x3A)
    sections = [struct.unpack_from("<4Q", cubin, at + 8) for at in range(offset, offset + size * count, size)]
    found = [cubin[start : start + length] for flags, _, start, length in sections if flags & 4]
    assert found
    return found


@pytest.mark.parametrize(("d", "fits"), [(64, True), (2048, False)])
def test_a_block_that_depends_on_a_condition_has_its_bounds(context: Context, d: int, fits: bool) -> None:
    launch = TEMPLATE.launch.model_copy(update={"block": ("d if d > 32 else 32",)})
    template = TEMPLATE.model_copy(update={"launch": launch, "constraints": ()})
    names = WORKLOAD.names | CONFIG | {"d": d}
    found = [bool(parse(one).evaluate(names)) for one in _requirements(context, template)]
    # Extent of the block, extents of the grid, threads in all.
    assert found == [fits, *[True] * (len(found) - 2), fits]


@pytest.mark.gpu
@pytest.mark.timeout(400)
def test_an_exported_kernel_takes_the_time_that_was_reported(tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy")
    result = tune("silu_and_mul", run_dir=tmp_path / "run", backend="cuda", evaluations=8, rounds=1, wisdom=False)
    # The longest launch: beside it the time between two events counts for little.
    row = max((one for one in result.summary.tuned if one.general), key=lambda one: one.baseline_seconds or 0.0)
    kernels = Kernels(result.folder / "best")
    about = kernels.launches["general"]["workloads"][row.workload]
    types, sizes = (tuple(about[key][name] for name in getattr(kernels, key)) for key in ("types", "sizes"))
    choice = KernelChoice("general", tuple(about["grid"]), tuple(about["block"]), about["shared_bytes"])
    launch = PreparedLaunch(kernels, 0, types, sizes, choice, {})
    arrays = [
        cupy.zeros(math.prod(one["shape"]) * ELEMENT_BYTES[one["dtype"]], cupy.uint8)
        for one in about["arguments"]
        if one["role"] != "scalar"
    ]
    for slot, array in zip(launch.slots, arrays, strict=False):
        slot.value = array.data.ptr
    flushed, start, end, times = cupy.empty(1 << 28), cupy.cuda.Event(), cupy.cuda.Event(), list[float]()
    for _ in range(50):
        flushed.fill(0)
        start.record()
        launch.start(cupy.cuda.get_current_stream().ptr)
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) * 1e-3)
    assert statistics.median(times) == pytest.approx(row.general.seconds, rel=0.1)
