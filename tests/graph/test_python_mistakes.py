"""Mistakes of who calls Tunesmith from Python: each is a `TunesmithError` of one sentence and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunesmith import tune_kernel
from tunesmith.graph import resume, tune
from tunesmith.graph.results.exports import export_run
from tunesmith.hw.errors import TunesmithError

TWICE = """__kernel void twice(__global const float* x, __global float* y, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = 2.0f * x[i];
}"""
SAXPY = """__kernel void saxpy(__global const float* x, __global float* y, float a, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = a * x[i];
}"""
X = np.ones(64, np.float32)


def broken(x: Any) -> Any:
    raise KeyError("inside")


def holds_a_lock() -> Callable[[Any], Any]:
    lock = threading.Lock()
    return lambda x: 2 * x if lock else x


def given(source: Any = TWICE, reference: Any = lambda x: 2 * x, inputs: Any = (X,), **more: Any) -> Any:
    return lambda: tune_kernel(source, reference, inputs, **more)


def tuned(task: Any = "silu_and_mul", **settings: Any) -> Any:
    return lambda: tune(task, **settings)


def resumed(run: Any = "empty", **more: Any) -> Any:
    return lambda: resume(run, **more)


def exported(run: Any = "empty", form: Any = "t4", *out: Any) -> Any:
    return lambda: export_run(run, form, *out)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (given(inputs=[[1.0, 2.0]]), "inputs: x is 1.0; give an array"),
    (given(inputs=[]), "inputs: give a list of at least one example of what the kernel reads, not []"),
    (given(inputs="x"), "give each example as an array"),
    (given(inputs=[{1: X}]), "inputs: twice reads no 1; it reads x, n"),
    (given(inputs=[{"x": X, "n": "many"}]), "inputs: n is 'many'; give a number"),
    (given(inputs=[{"x": X, "n": -3}]), "n is -3; give a whole number of at least 1"),
    (given(inputs=[X.astype(np.float64)]), "x is an array of float64, but the kernel takes float32"),
    (given(inputs=[X, X.reshape(8, 8)]), "x has 1 dimensions in one example and other numbers in others"),
    (given(SAXPY, lambda x, a: a * x, [{"x": X, "a": X}]), "inputs: a is array("),
    (given(SAXPY, lambda x: x, [X]), "the scalar a has no value"),
    (given(reference=3), "reference: give a function"),
    (given(reference="base"), 'reference: give a function of the arrays that the kernel reads, or "baseline"'),
    (given(inputs=[{"x": np.zeros((2, 0), np.float32)}]), "inputs: x is array([], shape=(2, 0), dtype=float32); give"),
    (given(reference=lambda x, q: x), "reference: called with x it raises TypeError: <lambda>() missing 1"),
    (given(reference=broken), "reference: called with x it raises KeyError: 'inside'"),
    (given(reference=lambda x: None), "reference: its y is None; return an array"),
    (given(reference=lambda x: (x, x)), "reference: it gives 2 results, but twice writes y"),
    (given(reference=lambda x: {"z": x}), "reference: it gives z, but twice writes y"),
    (given(reference=holds_a_lock()), "reference: the function cannot be sent to another process"),
    (given(source=Path("kernel.cl")), "source: give the kernel's text"),
    (given(source=TWICE.replace("x[i];", "x[i]")), "expected ';' after expression"),
    (given(entry="thrice"), "there is no kernel 'thrice'; choose entry from twice"),
    (given(grid=4), "grid: give a list such as"),
    (given(grid=["q"]), "grid: q is not a size of the kernel; its sizes are n"),
    (given(block=[1, 1, 1, 1]), "block: list at most 3, not"),
    (given(tolerance=1e-3), "tolerance: give pairs of rtol and atol"),
    (given(tolerance={"y": (-1, 0)}), "tolerance: rtol: give a number of at least 0, not -1"),
    (given(tolerance={"z": (1e-3, 0)}), "tolerance: the dtype 'z' is not known"),
    (given(fills={"z": "sorted"}), "fills: give a dict by names of x"),
    (given(fills={"x": "offsets"}), "fills: fill: a fill of the kind offsets has no further key but `high`"),
    (given(fills={"x": {"low": 0, "high": "m"}}), "argument x, key fill: In the expression `m`, column 1"),
    (given(opponents=[broken]), "opponents: give a dict of functions by their names"),
    (given(opponents={"": broken}), "opponents: name: give a text of at least 1 characters"),
    (given(opponents={"numpy": holds_a_lock()}), "numpy: the function cannot be sent to another process"),
    (given(task="twice"), "task: the kernel and the examples are the task here"),
    (tuned(evals=3), "--evals: there is no such option; did you mean --evaluations?"),
    (tuned(zzz=3), "--zzz: there is no such option; `tunesmith tune --help` lists them."),
    (tuned(objective="edp", dispatch_shapes=4), "--dispatch-shapes: a dispatch rule chooses by time"),
    (tuned(None), "There is no task 'None'"),
    (tuned(models="gpt"), "models: give language models of your own, not 'gpt'"),
    (tuned(run_dir=""), "--run-dir: the name is empty"),
    (tuned(run_dir="a\0b"), "--run-dir: 'a\\x00b' cannot be used"),
    (tuned(run_dir="a" * 300), "File name too long"),
    (resumed(None), "run_dir: give the path of a folder, not None"),
    (resumed(), "empty is not the folder of a run"),
    (exported(None), "run: give the path of a folder, not None"),
    (exported("nothing"), "nothing is not the folder of a run"),
    (exported(form=None), "--as: there is no form 'None'"),
    (exported("empty", "t4", "file"), "--out: file is a file; name a new or an empty folder"),
    (exported("empty", "t4", 3), "--out: give the path of a folder, not 3"),
]


@pytest.mark.parametrize(("call", "wanted"), MISTAKES, ids=[wanted for _, wanted in MISTAKES])
def test_a_mistake_is_told_in_a_sentence(
    call: Callable[[], Any], wanted: str, device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TunesmithError) as caught:
        call()
    assert wanted in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "file"]
    assert (tmp_path / "file").read_text() == "mine"
