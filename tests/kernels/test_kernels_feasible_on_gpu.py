"""The feasible space against the driver of the GPU here: its points launch, and points that it refuses cannot."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import pytest

from tunesmith.hw.limits import DeviceLimits
from tunesmith.hw.probe import DeviceInfo, probe_cuda
from tunesmith.kernels.backends import BoundLaunch, open_compiler, open_device
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised, specialise
from tunesmith.kernels.space import compiler_rejection, feasible
from tunesmith.kernels.spec.task import Workload, geometry
from tunesmith.kernels.spec.taskfile import load_task
from tunesmith.kernels.spec.template import Config, Template

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]

POINTS = 500
TINY = Workload(name="tiny", sizes={"m": 64, "n": 64, "k": 64}, types={"T": "float16"})
LIMITED = ("block_dim", "threads_per_block", "shared_per_block")
ANY_GEOMETRY = Template.model_validate(
    {
        "name": "any geometry",
        "backend": "cuda",
        "entry": "trivial",
        "source": "x",
        "parameters": [
            {"name": "BX", "values": [1, 3, 32, 256, 513, 1024, 1025, 2048]},
            {"name": "BY", "values": [1, 2, 4, 31, 1024, 1025]},
            {"name": "BZ", "values": [1, 2, 16, 64, 65, 128]},
            {"name": "SHARED", "values": [0, 1, 49151, 49152, 49153, 101376, 166912, 232447, 232448, 232449, 300000]},
        ],
        "launch": {"grid": [1], "block": ["BX", "BY", "BZ"], "shared_bytes": "SHARED"},
    }
)
TRIVIAL = 'extern "C" __global__ void trivial() { extern __shared__ int s[]; if (blockIdx.y > 7) s[0] = 1; }'


@pytest.fixture(scope="module")
def here() -> DeviceInfo:
    return probe_cuda().devices[0]


def gemm() -> Template:
    """The one whose shared memory, block and registers all depend on its parameters."""
    return next(one for one in load_task("gemm").sources("cuda").templates if one.name == "tiles")


def compile_all(limits: DeviceLimits, sources: list[Specialised]) -> list[Any]:
    """Runs in a process of its own."""
    compiler = open_compiler(limits)
    return [compiler.compile(source) for source in sources]


def test_what_is_feasible_compiles_and_launches(here: DeviceInfo) -> None:
    template = gemm()
    space = feasible(template, [*load_task("gemm").workloads_for("gpu", held_out=False), TINY], here.limits)
    points = space.sample(np.random.default_rng(0), POINTS)
    configs = [space.config(point) for point in points]
    assert len(configs) == POINTS
    sources = [specialise(template, config, TINY.types) for config in configs]
    workers = min(16, len(os.sched_getaffinity(0)))
    # Not forked: a child must not inherit the driver's state. Small parts, so that all processes end together.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        parts = [pool.submit(compile_all, here.limits, sources[at : at + 5]) for at in range(0, POINTS, 5)]
        answers = [answer for part in parts for answer in part.result()]
    refused = [(config, a) for config, a in zip(configs, answers, strict=True) if not isinstance(a, Artifact)]
    assert not refused, refused[:3]

    device = open_device(here.limits, here.index)
    count = 64 * 64
    a, b, c = (device.allocate(2 * count) for _ in range(3))
    for buffer in (a, b):
        device.write(buffer, np.zeros(2 * count, np.uint8))
    sizes = tuple(np.int32(TINY.sizes[name]) for name in ("m", "n", "k"))
    for config, artifact in zip(configs, answers, strict=True):
        shape = geometry(template, config, TINY)
        assert compiler_rejection(here.limits, shape, artifact.resources) is None, (config, artifact.resources)
        device.write(c, np.full(2 * count, 0xFF, np.uint8))
        # A DeviceError here is the failure this test is about; pytest shows it with the point.
        device.launch(BoundLaunch(device.load(artifact), shape, (a, b, c, *sizes)))
        device.synchronize()
        assert not device.read(c).any(), f"{config} does not compute 0 from zeros"


class Driver:
    """A kernel without arguments, launched as the driver likes it."""

    def __init__(self, here: DeviceInfo) -> None:
        from cuda.bindings import driver

        self.api = driver
        self.done(driver.cuInit, 0)
        context = self.done(driver.cuDevicePrimaryCtxRetain, self.done(driver.cuDeviceGet, here.index))
        self.done(driver.cuCtxSetCurrent, context)
        artifact = open_compiler(here.limits).compile(Specialised("cuda", "trivial", TRIVIAL))
        assert isinstance(artifact, Artifact), artifact
        self.module = self.done(driver.cuModuleLoadData, artifact.code)
        self.function = self.done(driver.cuModuleGetFunction, self.module, b"trivial")

    def done(self, function: Any, *arguments: Any) -> Any:
        """The value of a call of the driver that succeeds."""
        code, *values = function(*arguments)
        assert int(code) == 0
        return values[0] if values else None

    def refusal(self, block: tuple[int, int, int], shared: int) -> int:
        """The error of opting in to `shared` bytes or of the launch, 0 when it ran."""
        # Reset, so that no launch profits from what an earlier one was allowed.
        name = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.done(self.api.cuFuncSetAttribute, self.function, name, 48 << 10)
        if shared > 48 << 10 and (code := int(self.api.cuFuncSetAttribute(self.function, name, shared)[0])):
            return code
        (code,) = self.api.cuLaunchKernel(self.function, 1, 1, 1, *block, shared, 0, 0, 0)
        return int(code) or int(self.api.cuCtxSynchronize()[0])


@pytest.fixture(scope="module")
def driver(here: DeviceInfo) -> Driver:
    return Driver(here)


def candidates(template: Template, limits: DeviceLimits, seed: int) -> Iterator[tuple[Config, str | None]]:
    """Different points of the whole product, feasible or not, with the kind of the rule that refuses each."""
    space = feasible(template, [TINY], limits)
    for key in np.random.default_rng(seed).permutation(space.cartesian):
        config = space.domain.config(np.unravel_index(int(key), space.domain.sizes))
        reason = space.reject(config)
        yield config, None if reason is None else reason.reason


def test_what_is_refused_for_a_limit_of_the_device_cannot_be_launched(here: DeviceInfo, driver: Driver) -> None:
    asked: Counter[str] = Counter()
    for template, seed in ((gemm(), 1), (ANY_GEOMETRY, 2)):
        kinds = ((config, kind) for config, kind in candidates(template, here.limits, seed) if kind in LIMITED)
        for _, (config, kind) in zip(range(POINTS // 2), kinds, strict=False):
            shape = geometry(template, config, TINY)
            code = driver.refusal(shape.block, shape.shared_bytes)
            assert code != 0, f"{config} is refused for its {kind}, but the driver launches {shape}"
            asked[str(kind)] += 1
    assert sum(asked.values()) == POINTS and set(asked) == set(LIMITED)


def test_what_is_kept_the_driver_launches(here: DeviceInfo, driver: Driver) -> None:
    """The other direction, without which a driver that refuses everything would pass for agreement."""
    launched = 0
    for config, kind in candidates(ANY_GEOMETRY, here.limits, 3):
        if kind is not None:
            continue
        shape = geometry(ANY_GEOMETRY, config, TINY)
        code = driver.refusal(shape.block, shape.shared_bytes)
        assert code == 0, f"{config} is called feasible, but the driver answers {code} to {shape}"
        launched += 1
    assert launched > 200
