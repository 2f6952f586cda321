"""CUDA: NVRTC everywhere, the device where there is one."""

import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import FILES, SOURCES, CompilerContract, DeviceContract, compiled

from tunesmith.hw.probe import probe_cuda
from tunesmith.kernels.backends import (
    BoundLaunch,
    Compiler,
    CompilerUnavailable,
    Device,
    OutOfDeviceMemory,
    open_compiler,
    open_device,
)
from tunesmith.kernels.backends.cuda import _OWN, BEYOND_EDGE, _Mapping
from tunesmith.kernels.backends.nvrtc import NvrtcCompiler, _header_roots, _target, assemble, parse_resources
from tunesmith.kernels.build.machine_code import MarkedArtifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import CompileFailed, Resources
from tunesmith.kernels.spec.task import Geometry

driver = pytest.importorskip("cuda.bindings.driver")

HUNGRY = (FILES / "hungry.cu").read_text()


@pytest.fixture(scope="module")
def backend() -> str:
    return "cuda"


@pytest.fixture(scope="module")
def compiler(nvrtc: Compiler) -> Compiler:
    return nvrtc


class TestNvrtcCompiler(CompilerContract):
    def test_it_makes_a_cubin_for_the_architecture(self, compiler: Compiler) -> None:
        artifact = compiled(compiler, "cuda", HUNGRY, "hungry")
        assert artifact.arch == "sm_90" and artifact.code.startswith(b"\x7fELF")
        assert re.fullmatch(r"nvrtc \d+\.\d+", compiler.version)
        free = compiled(compiler, "cuda", HUNGRY, "hungry").resources
        capped = compiled(compiler, "cuda", HUNGRY, "hungry", max_registers=40).resources
        assert (free.registers or 0) > 100 and (free.spills, free.local) == (0, 0)
        assert (capped.registers or 99) <= 40 and (capped.spills or 0) > 0 and (capped.local or 0) > 0

    @pytest.mark.parametrize(
        "statement",
        ['asm(".incbin \\"x\\";")', 'asm(".inc" "bin \\"x\\";")', 'asm(".include \\"x\\"")', "asm(TEXT(.incbin x;))"],
    )
    def test_assembly_knows_no_directive_that_reads_a_file(self, compiler: Compiler, statement: str) -> None:
        """Hence no rule of the guard's about texts, which concatenation and macros would get round."""
        source = f'#define TEXT(x) #x\nextern "C" __global__ void k(int* p) {{ {statement}; *p = 1; }}'
        failed = compiler.compile(Specialised("cuda", "k", source))
        assert isinstance(failed, CompileFailed) and "Parsing error near '.inc" in failed.log

    def test_headers_are_found_or_named_and_errors_of_the_assembler_told(self, compiler: Compiler) -> None:
        for name in ("cuda_fp16.h", "cuda_bf16.h", "cooperative_groups.h", "mma.h"):
            # Behind a line of its own a header is not precompiled, which for one use takes longer than it saves.
            text = f'#define USED 1\n#include <{name}>\nextern "C" __global__ void k(int* p) {{ *p = USED; }}'
            answer = compiler.compile(Specialised("cuda", "k", text))
            if isinstance(answer, CompileFailed):
                # Some need the C++ library's headers, which are a package of their own.
                assert name != "cuda_fp16.h" and name != "cuda_bf16.h", answer.first_error
        text = '#include <cub/block/nowhere.cuh>\nextern "C" __global__ void k() {}'
        answer = compiler.compile(Specialised("cuda", "k", text))
        assert isinstance(answer, CompileFailed)
        assert "cub/block/nowhere.cuh" in answer.first_error and "nvidia-cuda-cccl" in answer.first_error
        text = (
            'extern "C" __global__ void big(int* a) { __shared__ int x[20000]; x[threadIdx.x] = a[0];'
            " __syncthreads(); a[1] = x[threadIdx.x ^ 1]; }"
        )
        answer = compiler.compile(Specialised("cuda", "big", text))
        assert isinstance(answer, CompileFailed) and "too much shared data" in answer.first_error
        assert answer.first_error.startswith("ptxas error")
        answer = compiler.compile(Specialised("cuda", "k", 'extern "C" __global__ void k() { asm("bogus.u32;"); }'))
        assert isinstance(answer, CompileFailed) and "bogus" in answer.log


@pytest.mark.parametrize(
    ("packages", "asked", "sentence"),
    [
        # Further packages would take another interpreter in each process that compiles.
        ({"cudart": ("crt",)}, ["cudart", "cccl"], ""),
        ({"cudart": (), "cccl": (), "nvcc": ()}, ["cudart", "cccl", "nvcc"], ""),
        ({}, ["cudart"], r"the CUDA runtime headers are missing; install the extra cuda13"),
        (None, [], r"\(Canary probe .* 10.0 seconds\): try again .*\.$"),
    ],
)
def test_headers_are_looked_for_in_as_few_packages_as_have_them(
    packages: Any, asked: Any, sentence: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Where each package is, `cuda.pathfinder` knows. packages: folders inside of each that is installed; None where
    nobody answers."""
    seen: list[str] = []

    def find(name: str) -> str | None:
        if packages is None:
            raise ChildProcessError("Canary probe child process timed out after 10.0 seconds.\nmore")
        seen.append(name)
        for inside in packages.get(name, ()):
            (tmp_path / name / inside).mkdir(parents=True)
        return str(tmp_path / name) if name in packages else None

    monkeypatch.setattr("cuda.pathfinder.find_nvidia_header_directory", find)
    if sentence:
        with pytest.raises(CompilerUnavailable, match=sentence) as caught:
            _header_roots()
        assert "\n" not in str(caught.value)
    else:
        assert _header_roots() == [tmp_path / name for name in packages or ()]
    assert seen[: len(asked)] == asked and (sentence or seen == asked)


def test_unknown_architectures_own_kernels_and_the_log_of_several() -> None:
    with pytest.raises(CompilerUnavailable, match=r"NVRTC [\d.]+ does not compile for sm_50, only for .*sm_90"):
        NvrtcCompiler("sm_50")
    pytest.importorskip("cuda.bindings.nvjitlink")
    assert isinstance(assemble(_OWN.decode().rstrip("\0"), "sm_90"), bytes)
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for helper
ptxas         .     96 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Function properties for first
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers
ptxas info    : Compiling entry function 'first_of_two' for 'sm_90'
ptxas info    : Function properties for first_of_two
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 8000 bytes smem
"""
    assert parse_resources(log, "first") == Resources(registers=24, shared=0, local=16, spills=16)
    assert parse_resources(log, "first_of_two") == Resources(registers=10, shared=8000, local=0, spills=0)
    assert parse_resources(log, "second") == Resources()


OWN = 'extern "C" __global__ void k(int* p) { asm volatile("setmaxnreg.inc.sync.aligned.u32 232;"); *p = 1; }'
GUARDED = f"""#if __CUDA_ARCH__ >= 900
{OWN}
#else
extern "C" __global__ void k(int* p) {{ *p = 2; }}
#endif
"""
SPOKEN_OF = 'extern "C" __global__ void k(int* p) { /* unlike wgmma.mma_async */ *p = 1; } // nor tcgen05.mma'


@pytest.mark.parametrize(
    ("arch", "source", "target"),
    [
        ("sm_80", GUARDED, "sm_80"),
        ("sm_80", SPOKEN_OF, "sm_80"),
        ("sm_90", SPOKEN_OF, "sm_90"),
        ("sm_90", OWN, "sm_90a"),
        ("sm_90", GUARDED, "sm_90a"),
        ("sm_90a", OWN, "sm_90a"),
        ("sm_90a", SPOKEN_OF, "sm_90a"),
        ("sm_100f", OWN, "sm_100f"),
        ("sm_120", OWN, "sm_120a"),
    ],
)
def test_only_code_that_needs_it_is_compiled_for_one_architecture_alone(arch: str, source: str, target: str) -> None:
    assert _target(arch, source) == target and compiled(NvrtcCompiler(arch), "cuda", source, "k").arch == arch


ENDS = {"cuMemRelease": "cuMemCreate", "cuMemAddressFree": "cuMemAddressReserve", "cuMemUnmap": "cuMemMap"}
GRAIN = 2 << 20


def pretended(monkeypatch: pytest.MonkeyPatch, reserved: int = GRAIN, fails: str = "") -> list[tuple[str, Any]]:
    """The calls of a stand-in for the driver that succeed, with what is given first. reserved: the addresses it has."""
    calls = list[tuple[str, Any]]()

    def pretend(name: str) -> None:
        def call(*given: Any) -> Any:
            if name == fails:
                return (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
            calls.append((name, (*given, None)[0]))
            return driver.CUresult.CUDA_SUCCESS, reserved if name == "cuMemAddressReserve" else GRAIN

        monkeypatch.setattr(driver, name, call)

    for name in (*ENDS, *ENDS.values(), "cuMemSetAccess", "cuMemGetAllocationGranularity", "cuCtxSynchronize"):
        pretend(name)
    return calls


@pytest.mark.parametrize("fails", ["cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_a_mapping_that_fails_gives_everything_back(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pretended(monkeypatch, fails=fails)
    with pytest.raises(OutOfDeviceMemory):
        _Mapping(1 << 21, 0)
    gc.collect()
    names = [name for name, _ in calls]
    assert "cuMemCreate" in names and all(names.count(end) >= names.count(start) for end, start in ENDS.items())


@pytest.mark.parametrize("reserved", [7 << 21, (1 << 32) - (64 << 20), (5 << 32) + (3 << 21)])
@pytest.mark.parametrize(("nbytes", "at"), [(4096, 1024), (5 << 20, 16), (5 << 20, (5 << 20) - 16), (6 << 30, 1 << 21)])
def test_a_mapping_lies_across_a_multiple_of_4_gib(nbytes: int, at: int, reserved: int, monkeypatch: Any) -> None:
    calls = pretended(monkeypatch, reserved)
    mapping = _Mapping(nbytes, 0, at)
    first, [room] = mapping.start + mapping.offset, [given for name, given in calls if name == "cuMemAddressReserve"]
    assert (first + at) % (1 << 32) == 0 and mapping.start % GRAIN == mapping.size % GRAIN == 0
    assert mapping.start <= first and first + nbytes <= mapping.start + mapping.size < first + nbytes + 2 * GRAIN
    assert reserved + BEYOND_EDGE <= mapping.start and mapping.start + mapping.size + BEYOND_EDGE <= reserved + room
    del mapping


@pytest.fixture(scope="module")
def here() -> Any:
    return probe_cuda().devices[0]


@pytest.fixture(scope="module")
def opened(here: Any) -> Device:
    return open_device(here.limits, here.index)


@pytest.mark.gpu
class TestCudaDevice(DeviceContract):
    @pytest.fixture(scope="class")
    def compiler(self, here: Any) -> Compiler:
        return open_compiler(here.limits)

    def test_kinds_of_memory_add_up_and_are_read(self, compiler: Compiler, opened: Device) -> None:
        """Neither alone exceeds what needs no opting in; together they do."""
        text = (
            'extern "C" __global__ void both(int* a) { __shared__ int x[8192]; extern __shared__ int y[];'
            " x[threadIdx.x] = a[threadIdx.x]; y[threadIdx.x] = 1; __syncthreads();"
            " a[threadIdx.x] = x[31 - threadIdx.x] + y[31 - threadIdx.x]; }"
        )
        kernel = opened.load(compiled(compiler, "cuda", text, "both"))
        buffer = self.filled(opened, np.arange(32, dtype=np.int32))
        opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), (32, 1, 1), 32 << 10), (buffer,)))
        opened.synchronize()
        assert self.ints(opened, buffer, 32) == list(range(32, 0, -1))
        text = '__constant__ int table[2] = {5, 6};\nextern "C" __global__ void k(int* a) { a[0] = table[a[1]]; }'
        artifact = compiled(compiler, "cuda", text, "k")
        kernel = opened.load(artifact)
        assert np.frombuffer(opened.constants(kernel, artifact), np.int32).tolist() == [5, 6]
        other = compiled(compiler, "cuda", SOURCES["cuda"]["add"], "add")
        assert opened.constants(opened.load(other), other) == b""
        # Also where one of its bytes is zero; by it telemetry finds the GPU and tunings lock it.
        assert opened.uuid.removeprefix("GPU-") in {str(one.uuid)[4:] for one in probe_cuda().devices}

    def test_a_launch_takes_the_same_in_short_and_in_long_sequences(self, compiler: Compiler, opened: Device) -> None:
        """The time to start and end a sequence, some 6 % of the short one, is left out."""
        kernel = opened.load(compiled(compiler, "cuda", SOURCES["cuda"]["add"], "add"))
        buffer = self.filled(opened, np.zeros(1 << 20, np.int32))
        launch = BoundLaunch(kernel, Geometry((1 << 13, 1, 1), (128, 1, 1)), (buffer, np.int32(1 << 20), np.float32(1)))
        short, long = opened.sequence([launch] * 10), opened.sequence([launch] * 300)
        opened.times([long])
        rounds = [opened.times([short, long]) for _ in range(15)]
        few, many = (np.median(times) for times in zip(*rounds, strict=True))
        assert few / 10 == pytest.approx(many / 300, rel=0.03)

    @pytest.mark.parametrize(("count", "at"), [(1024, 1024), (5 << 18, 16), (5 << 18, (5 << 20) - 16)])
    def test_a_buffer_lies_across_a_multiple_of_4_gib(self, compiler: Any, opened: Device, count: int, at: int) -> None:
        kernel = opened.load(compiled(compiler, "cuda", SOURCES["cuda"]["add"], "add"))
        buffer = opened.allocate_across(4 * count, at)
        assert buffer.nbytes == 4 * count and (buffer.data.ptr + at) % (1 << 32) == 0
        opened.write(buffer, np.arange(count, dtype=np.int32).view(np.uint8))
        shape = Geometry((-(-count // 256), 1, 1), (256, 1, 1))
        opened.launch(BoundLaunch(kernel, shape, (buffer, np.int32(count), np.float32(2))))
        opened.synchronize()
        assert (opened.read(buffer).view(np.int32) == np.arange(count) + 2).all()
        # Its memory ends while a copy of it may be under way.
        opened.copy(opened.allocate(4 * count), buffer)
        del buffer
        gc.collect()
        opened.synchronize()

    def test_all_work_of_a_process_goes_on_one_stream(self, here: Any, opened: Device) -> None:
        """Also of a second device, and after code that leaves another one current, as CuPy's `with` does."""
        from cupy.cuda import Stream, get_current_stream

        device: Any = opened
        again: Any = open_device(here.limits, here.index)
        assert again.stream is device.stream
        with opened.foreign_code(), Stream(non_blocking=True) as other:
            assert get_current_stream() == other != device.stream
        assert get_current_stream() == device.stream

    def test_an_illegal_address_is_sticky(self) -> None:
        """In a process of its own, as the device is lost to it."""
        assert "sticky: True, then: True" in said_by(ILLEGAL)
        # Where it is switched off, as administrators can, or missing, as in some containers.
        assert "in order: True" in said_by(TIMED, CUDA_DISABLE_PTX_JIT="1", CUDA_CACHE_DISABLE="1")


def said_by(script: str, **environment: str) -> str:
    """The output of PRELUDE and a script in a process of their own."""
    command, env = [sys.executable, "-c", PRELUDE + script], os.environ | environment
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90, env=env
    ).stdout


PRELUDE = """
import os
import numpy as np
from tunesmith.hw.probe import probe_cuda
from tunesmith.kernels.backends import DeviceError, BoundLaunch, open_compiler, open_device
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.spec.task import Geometry

here = probe_cuda().devices[0]
text = 'extern "C" __global__ void k(int* a, long long by) { a[by] += 1; }'
artifact = open_compiler(here.limits).compile(Specialised("cuda", "k", text))
device = open_device(here.limits, here.index)
buffer = device.allocate(512)

def at(place):
    return BoundLaunch(device.load(artifact), Geometry((1, 1, 1), (1, 1, 1)), (buffer, np.int64(place)))
"""
TIMED = """
launch = at(0)
few, many = device.sequence([launch]), device.sequence([launch] * 40)
first, second = device.times([few, many])
print(f"in order: {0 < first < second < 1}, overhead: {device.graph_overhead_seconds}", flush=True)
"""
ILLEGAL = """
sticky = then = None
try:
    device.launch(at(1 << 44))
    device.synchronize()
except DeviceError as error:
    sticky = error.sticky
try:
    device.read(buffer)
except DeviceError as error:
    then = error.sticky
print(f"sticky: {sticky}, then: {then}", flush=True)
os._exit(0)
"""


def test_an_empty_log_of_nvrtc_leaves_the_bytes_that_python_shares(tmp_path: Path) -> None:
    """Seen where the module is compiled in the same process: its constants are then the shared ones."""
    pytest.importorskip("cuda.bindings")
    script = (
        "from tunesmith.kernels.backends.nvrtc import NvrtcCompiler\n"
        "from tunesmith.kernels.build.source import Specialised\n"
        """NvrtcCompiler("sm_90").profile(Specialised("cuda", "k", 'extern "C" __global__ void k() {}'))\n"""
        'assert "a b".encode()[1:2] == bytes(bytearray([32]))\n'
    )
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env=environment)


RELAY = """__device__ unsigned ready[4096];
__device__ float passed_on[4096];
extern "C" __global__ void relay(float* out) {
    const int pair = blockIdx.x / 2;
    if (threadIdx.x > 0) return;
    if (blockIdx.x % 2 == 0) {
        passed_on[pair] = pair + 1;
        __threadfence();
        atomicExch(&ready[pair], 1u);
        return;
    }
    WAIT
    __threadfence();
    out[pair] = *(volatile float*)&passed_on[pair];
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("wait", "right"),
    [
        ("for (int i = 0; i < 4; ++i) __nanosleep(5000);", False),
        ("while (atomicAdd(&ready[pair], 0u) == 0u) __nanosleep(100);", True),
    ],
)
def test_a_block_that_does_not_wait_for_another_shows_when_blocks_are_delayed(wait: str, right: bool) -> None:
    found = probe_cuda().devices[0]
    opened = open_device(found.limits, found.index)
    source = Specialised("cuda", "relay", RELAY.replace("WAIT", wait))
    marked = open_compiler(found.limits, found.index).mark(source)
    assert isinstance(marked, MarkedArtifact), marked
    kernel, _ = opened.load_marked(marked.artifact)
    out = opened.allocate(4 * 512)
    opened.launch(BoundLaunch(kernel, Geometry((1024, 1, 1), (32, 1, 1)), (out,)))
    opened.synchronize()
    assert np.array_equal(opened.read(out).view(np.float32), np.arange(512) + 1) == right
