"""Triton's compiler, without a device: for NVIDIA and AMD, what a launch needs, failures as values; and on a GPU."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from compiling import visit
from written import KERNEL, triton_task

from tunesmith.hw.limits import as_triton
from tunesmith.hw.probe import probe
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.backends import open_compiler
from tunesmith.kernels.backends.triton.autotune import Autotuned
from tunesmith.kernels.build.artifact import Artifact, ArtifactCache, Candidate
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import Specialised, code_key, specialise
from tunesmith.kernels.measure.bench import Bench, ComparisonRequest
from tunesmith.kernels.measure.timing import Comparison
from tunesmith.kernels.outcome import CompileFailed, Measured, Rejected, WrongResult
from tunesmith.kernels.spec.task import Task

pytest.importorskip("triton", reason="Triton is not installed: pip install 'tunesmith[triton]'")
pytestmark = pytest.mark.xdist_group("triton")
LIMITS = as_triton(resolve_target("h200"))


def source_of(task: Task, workload: int = 0) -> Specialised:
    template = task.sources("triton").templates[0]
    key = code_key(task, template, task.workloads[workload])
    return specialise(template, template.default_config, dict(key))


def test_an_artifact_has_what_a_launch_needs(tmp_path: Path) -> None:
    task = triton_task(tmp_path)
    made = open_compiler(LIMITS).compile(source_of(task))
    assert isinstance(made, Artifact) and made.call is not None
    # The step, which is 1, is a constant of the machine code.
    assert made.call.arguments == ((0, "*fp16"), (1, "*fp16"), (2, "*fp16"), (3, "i32"), (5, "fp32"))
    assert (made.call.threads, made.call.cluster, made.backend, made.arch) == (128, 1, "triton", "sm_90")
    # Where another argument is the constant, the same code takes another one.
    other = replace(made.call, arguments=(*made.call.arguments[:3], (4, "i32"), made.call.arguments[4]))
    assert replace(made, call=other).code_digest != made.code_digest
    cache = ArtifactCache(tmp_path / "cache")
    assert cache.put("a" * 64, made) and cache.get("a" * 64) == made
    same = triton_task(tmp_path)
    odd = same.workloads[1].model_copy(update={"types": {"T": "float16"}})
    task = same.model_copy(update={"workloads": (same.workloads[0], odd)})
    first, second = (open_compiler(LIMITS).compile(source_of(task, place)) for place in (0, 1))
    assert isinstance(first, Artifact) and isinstance(second, Artifact) and first.code_digest != second.code_digest
    kernel = KERNEL.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, WHOLE: tl.constexpr")
    kernel = kernel.replace("inside = at < n", "tl.static_assert(WHOLE)\n    inside = at < n")
    heuristics = '@triton.heuristics({"WHOLE": lambda given: given["n"] % given["BLOCK"] == 0})\n@triton.jit'
    task = triton_task(tmp_path, kernel.replace("@triton.jit", heuristics))
    assert isinstance(open_compiler(LIMITS).compile(source_of(task)), Artifact)
    assert isinstance(open_compiler(LIMITS).compile(source_of(task, 1)), CompileFailed)
    made = open_compiler(LIMITS).mark(source_of(triton_task(tmp_path)))
    assert isinstance(made, MarkedArtifact) and {line for block in made.blocks for line in block} & set(range(6, 13))
    kernel = KERNEL.replace("    inside", '    tl.device_print("n", n)\n    inside')
    assert isinstance(open_compiler(LIMITS).compile(source_of(triton_task(tmp_path, kernel))), Rejected)


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (KERNEL.replace("at < n", "at < undefined"), "undefined"),
        (KERNEL.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK - 1)"), "power of 2"),
        (KERNEL.replace("def run", "def other"), "run"),
    ],
)
def test_a_failure_names_its_mistake(tmp_path: Path, kernel: str, said: str) -> None:
    source = source_of(triton_task(tmp_path))
    wrong = replace(source, source=source.source.replace(KERNEL.rstrip(), kernel.rstrip()))
    made = open_compiler(LIMITS).compile(wrong)
    assert isinstance(made, CompileFailed) and said in made.first_error


@pytest.mark.gpu
def test_on_a_gpu_a_right_kernel_is_measured_and_a_wrong_one_is_not(tmp_path: Path) -> None:
    limits = probe().device("triton").limits
    task, compiler = triton_task(tmp_path), open_compiler(limits)
    bench, template = Bench(task, limits, 0, seed=0), task.sources("triton").templates[0]
    key = code_key(task, template, task.workloads[0])
    wrong, clusters = KERNEL.replace("left + alpha", "left + 2 * alpha"), KERNEL + '\n\nFIXED = {"num_ctas": 2}\n'
    for text, outcome in ((KERNEL, Measured), (wrong, WrongResult), (clusters, Measured)):
        changed = template.model_copy(update={"source": text})
        made = compiler.compile(specialise(changed, changed.default_config, dict(key)))
        assert isinstance(made, Artifact), made
        found = visit(bench, Candidate(changed, changed.default_config, {key: made}))
        assert isinstance(found, outcome), found


CHOICES = """
[[backends.triton.opponents]]
name = "triton.autotune"
label = "production"
source_file = "run.py"
launch = { grid = "ceil_div(n, BLOCK)", block = "32 * num_warps" }
configs = [{ BLOCK = 128, num_warps = 1 }, { BLOCK = 1024, num_warps = 4 }]
"""


def test_where_pytorch_is_missing_an_opponent_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    task = triton_task(tmp_path, more=CHOICES)
    [opponent] = task.sources("triton").opponents
    with pytest.raises(ImportError, match="Triton's autotuner measures by PyTorch: `pip install torch`"):
        Autotuned(opponent, task.workloads[0])


@pytest.mark.gpu
def test_on_a_gpu_the_choice_of_triton_is_timed_beside_others(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch, by which Triton measures, is not installed")
    limits = probe().device("triton").limits
    task, compiler = triton_task(tmp_path, more=CHOICES), open_compiler(limits)
    sources = task.sources("triton")
    template, workload = sources.templates[0], task.workloads[0]
    key = code_key(task, template, workload)
    made = compiler.compile(specialise(template, template.default_config, dict(key)))
    assert isinstance(made, Artifact), made
    candidate = Candidate(template, template.default_config, {key: made})
    rivals = [(one, None) for one in sources.opponents]
    request = ComparisonRequest(candidate, [candidate], workload.name, 12, 0.5, opponents=rivals)
    [met] = Bench(task, limits, 0, seed=0).compare(request).opponents
    assert met.choice in sources.opponents[0].configs, met
    assert isinstance(met.comparison, Comparison) and isinstance(met.against[0], Comparison), met
    assert met.first_seconds is not None and met.first_seconds > 0.05
