"""The reference is the user's code: whatever it does, it is named, in time, and no kernel is blamed."""

import re
import time
from contextlib import nullcontext

import pytest

from tunesmith.actors.judging.task_check import check_reference, examine_reference
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.spec.task import Task, TaskError

LIMITS = resolve_target("sm_90")
HEAD = "import os, sys, time\nimport numpy as np\n"


def task(body: str, *, atol: float = 1e-5, dtype: str = "float32", role: str = "in") -> Task:
    launch = {"grid": ["1"], "block": ["1"]}
    plain = {"name": "b", "backend": "cuda", "source": "x", "entry": "scale", "launch": launch}
    outputs = [{"name": "y", "role": "out", "dtype": dtype, "shape": ["n"]}]
    return Task.model_validate(
        {
            "name": "scale",
            "entry": "scale",
            "arguments": [{"name": "x", "role": role, "dtype": dtype, "shape": ["n"]}, *outputs],
            "reference": f"{HEAD}\ndef scale(x):\n    {body}\n",
            "reference_name": "scale",
            "bytes": "8 * n",
            "tolerance": {dtype: {"rtol": 1e-5, "atol": atol}},
            "workloads": [
                {"name": "small", "sizes": {"n": 64}, "types": {}},
                {"name": "larger", "sizes": {"n": 200}, "types": {}, "held_out": True},
            ],
            "backends": {"cuda": {"baseline": {"template": plain}}},
        }
    )


def complaint(made: Task, deadline: float = 30.0) -> str:
    with pytest.raises(TaskError) as caught:
        check_reference(made, made.workloads_for(LIMITS.kind), seed=3, deadline=deadline)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("time.sleep(1000)", "workload small: the reference scale has not returned for 1 s: fix it"),
        (
            "time.sleep(1000 if x.size > 100 else 0); return {'y': 2 * x}",
            "workload larger: the reference scale has not returned",
        ),
        ("sys.exit(3)", "the reference scale ends the process that calls it (the process ended with code 3)"),
        ("os._exit(0)", "the reference scale ends the process that calls it (the process ended with code 0)"),
        ("os.kill(os.getpid(), 11)", "(the process ended by signal 11 (SIGSEGV))"),
    ],
)
def test_one_that_hangs_or_ends_its_process_is_named(body: str, wanted: str) -> None:
    begun = time.monotonic()
    message = complaint(task(body), deadline=1.0)
    assert message.startswith("Task scale, workload ") and wanted in message
    # The deadline, a process, and a machine with other things to do; without a deadline it would be 1000.
    assert time.monotonic() - begun < 100


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("x *= 2; return {'y': x}", "writes its argument x: let it work on a copy (x = x.copy())"),
        ("return {'y': np.random.rand(x.size)}", "gives two different results for y from the same arguments"),
        ("return {'y': np.sqrt(x)}", "returns nan at y["),
        ("return {'y': x + 1j}", "returns complex numbers for y; return real ones."),
        ("return {'y': x.astype(np.float32)}", "returns y in float32: return float64"),
        ("raise RuntimeError('no')", "raises RuntimeError: no (line 5 of its file); fix it"),
        ("return {'z': x}", "must return a dict with y; it returns z."),
        ("return {'y': 1e-9 * x}", "would accept zeros for y"),
        ("return {'y': 2 * x}", ""),
        # Nothing to tell apart: zeros are the right result.
        ("return {'y': 0 * x}", ""),
        ("return {'y': x.astype(int)}", ""),
    ],
)
def test_one_whose_results_are_no_measure_is_named(body: str, wanted: str) -> None:
    made = task(body, **{"dtype": "int32", "atol": 0} if "(int)" in body else {})
    with pytest.raises(TaskError, match=re.escape(wanted)) if wanted else nullcontext():
        examine_reference(made, made.workload("small"), 0, twice=True)


def test_it_is_called_on_small_workloads_and_on_one_at_least() -> None:
    few = task("return {'y': 2 * x if x.size < 100 else x * np.nan}")
    with pytest.raises(TaskError, match="workload larger: the reference scale returns nan"):
        check_reference(few, few.workloads, seed=0)
    called = check_reference(few, few.workloads, seed=0, most_bytes=8 * 64)
    assert called == few.workload("small")
    # One like the only workload is made smaller, and what is wrong there is not held against the author.
    called = check_reference(few, [few.workload("larger")], seed=0, most_bytes=8 * 64)
    assert called is not None and called.name.endswith("(made smaller)")
    many = task("return {'y': x * np.nan if x.size < 100 else 2 * x}")
    larger = many.workload("larger")
    assert check_reference(many, [larger], seed=0, most_bytes=8 * 64) == larger
    good = task("return {'y': 2 * x}")
    check_reference(good, good.workloads_for(LIMITS.kind), seed=0)
