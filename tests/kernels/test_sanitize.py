"""Which launches compute-sanitizer sees; that it finds what it is for is shown by the candidates on a GPU."""

from __future__ import annotations

from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.build.candidate import types_key
from tunesmith.kernels.check.plan import plan
from tunesmith.kernels.check.sanitize import LARGEST_BYTES, WORKLOADS, chosen_workloads
from tunesmith.kernels.spec.files.taskfile import load_task


def test_all_own_workloads_and_made_up_ones_of_all_sizes_and_types() -> None:
    task = load_task("softmax")
    every = [step.workload for step in plan(task, resolve_target("h200"), seed=0)]
    own = {one.name for one in every if one in task.workloads and task.bytes_of(one) <= LARGEST_BYTES}
    chosen = chosen_workloads(task, every)
    assert len({(one.name, types_key(one)) for one in chosen}) == len(chosen) == len(own) + WORKLOADS
    assert own <= {one.name for one in chosen}
    assert {types_key(one) for one in chosen} == {types_key(one) for one in every}
    made_up = [task.bytes_of(one) for one in chosen if one.name not in own]
    assert min(made_up) <= 100 and max(made_up) > 1e6
    assert len(chosen_workloads(task, every[:10])) == len({one.name for one in every[:10]})
