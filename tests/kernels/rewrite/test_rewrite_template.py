"""Templates by rules: every point compiles, computes what the baseline does, and the default is the baseline."""

from typing import Any

import numpy as np
import pytest
from emulation import contents
from plain_kernels import KERNELS, drafted
from rewrite_cases import (
    H200,
    LIBRARY_NAMES,
    OWN,
    RAW_NAMES,
    SAXPY,
    SERIES,
    kernel,
    plain_task,
    require_right,
    template_of,
)

from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.guard import refuse
from tunesmith.kernels.build.source import specialise
from tunesmith.kernels.rewrite.template import with_rules
from tunesmith.kernels.space import compiler_rejection, feasible
from tunesmith.kernels.spec.task import Task, Workload, geometry
from tunesmith.kernels.spec.template import Config, LaunchGeometry, Template
from tunesmith.kernels.spec.validation import validate_template

SMALL = {"n": 5, "d": 333, "h": 3, "half": 8, "w": 45, "e": 40, "k": 3, "m": 20}
EMULATED = (*OWN, "int8_quant", "layernorm", "rope", "stencil3x3", *(one for one in LIBRARY_NAMES if one != "gemm"))


def points(template: Template, workload: Workload, count: int) -> list[Config]:
    """The default and `count` feasible points."""
    space = feasible(template, [workload], H200)
    sampled = space.sample(np.random.default_rng(5), count)
    return [template.default_config, *(space.config(point) for point in sampled)]


def small(task: Task) -> Workload:
    """A workload whose sizes nothing divides, in float32."""
    if task.name in OWN:
        return task.workloads[1]
    sizes = {name: SMALL[name] for name in task.size_names}
    return Workload(name="small", sizes=sizes, types=dict.fromkeys(task.types, "float32"))


def task_named(name: str) -> Task:
    return drafted(name.removeprefix("plain "))[0] if name.startswith("plain ") else plain_task(name)


@pytest.mark.parametrize("name", [*OWN, *RAW_NAMES, *LIBRARY_NAMES, *(f"plain {one}" for one in KERNELS)])
class TestEveryKernel:
    def test_its_template_is_sound_and_begins_with_the_baseline(self, name: str) -> None:
        task = task_named(name)
        template, plain = template_of(task), task.sources("cuda").baseline.template
        validate_template(template, task, "here")
        for workload in task.workloads:
            assert geometry(template, template.default_config, workload) == geometry(plain, {}, workload)
            assert feasible(template, [workload], H200).reject(template.default_config) is None

    @pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.slow)])
    def test_its_points_compile_and_its_default_to_the_same_code(self, name: str, count: int, nvrtc: Any) -> None:
        task = task_named(name)
        template, workload, plain = template_of(task), task.workloads[0], task.sources("cuda").baseline.template
        registers = []
        for config in points(template, workload, count):
            source = specialise(template, config, workload.types)
            assert refuse(source) is None
            artifact = nvrtc.compile(source)
            assert isinstance(artifact, Artifact), (config, artifact)
            assert compiler_rejection(H200, geometry(template, config, workload), artifact.resources) is None, config
            registers.append(artifact.resources.registers)
        came = nvrtc.compile(specialise(plain, plain.default_config, workload.types))
        assert isinstance(came, Artifact)
        assert registers[0] == came.resources.registers, "the default is the first point"


@pytest.mark.parametrize(
    "name", [one if one in ("early", "softmax") else pytest.param(one, marks=pytest.mark.slow) for one in EMULATED]
)
def test_every_point_computes_what_the_baseline_does(name: str) -> None:
    task = plain_task(name)
    workload = small(task)
    require_right(task, points(template_of(task), workload, 3), workload, contents(task, workload, seed=3))


class TestWithRules:
    def test_templates_backends_and_names_that_are_there_stay(self) -> None:
        task, _ = with_rules(SAXPY, "cuda")
        assert [one.name for one in task.sources("cuda").templates] == ["by-rules"]
        assert with_rules(task, "cuda") == (task, ())
        assert with_rules(SAXPY, "opencl") == (SAXPY, ())
        names = [one.name for one in template_of(SAXPY).parameters]
        assert "TUNED_BLOCK" in names and "ITEMS" in names
        task = plain_task("bare")
        template, workload = template_of(task), task.workloads[0]
        for config in points(template, workload, 40):
            where = geometry(template, config, workload)
            assert where.grid[0] * where.block[0] * int(config["ITEMS"]) * int(config["VEC"]) == 8 * workload.sizes["n"]

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            ('asm volatile("mov.u32 %0, 1;" : "=r"(n));', "inline assembly"),
            ("tex2D<float>(0, 1, 2);", "tex2D"),
            ("saxpy<<<1, 2>>>(x, y, a, n);", "launches kernels"),
            ("cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());", "cooperative groups"),
            ("if (n < 0) return; __syncthreads();", "barrier"),
            ("n = undeclared_here[", "clang does not understand"),
        ],
    )
    def test_odd_code_is_left_alone_with_the_reason(self, line: str, why: str) -> None:
        plain = SAXPY.sources("cuda").baseline
        code = "#include <cooperative_groups.h>\n" + plain.template.source.replace("int i", f"{line}\n    int i")
        template = plain.template.model_copy(update={"source": code})
        sources = SAXPY.backends["cuda"].model_copy(
            update={"baseline": plain.model_copy(update={"template": template})}
        )
        task = SAXPY.model_copy(update={"backends": {"cuda": sources}})
        kept, reasons = with_rules(task, "cuda")
        assert kept is task and why in " ".join(reasons)

    @pytest.mark.parametrize(("extents", "free"), [(("1", "1"), True), (("2", "1"), False)])
    def test_the_rank_of_a_thread_counts_along_x_alone(self, extents: tuple[str, str], free: bool) -> None:
        more = "#include <cooperative_groups.h>"
        body = "auto i = cooperative_groups::this_grid().thread_rank(); if (i < n) y[i] = 2 * x[i];"
        launch = LaunchGeometry(grid=("ceil_div(n, 64)", extents[0]), block=("64", extents[1]))
        assert ("BLOCK" in template_of(kernel(body, SERIES, launch, more)).default_config) is free
