"""The notebook cell for a GPU, and the program that measures it, as far as they need none."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunesmith.cli.measure import notebook_cell
from tunesmith.graph.tune_kernel import _text
from tunesmith.kernels.rewrite.examples import read_signature


def test_the_cell_is_that_of_the_page_and_as_short_as_promised() -> None:
    cell = notebook_cell.cell_of()
    assert cell in notebook_cell.PAGE.read_text() and sum(map(bool, map(str.strip, cell.splitlines()))) <= 12
    tree = ast.parse(cell)
    values = {ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)}
    signature = read_signature(ast.literal_eval(values["source"]), None)
    assert signature.backend == "cuda" and (signature.read, signature.written) == (["x", "gate"], ["y"])
    inputs, beside = values["inputs"], values["beside"]
    assert isinstance(inputs, ast.List) and len(inputs.elts) == 2
    assert isinstance(beside, ast.Dict) and [ast.unparse(one) for one in beside.values] == [
        "gated",
        "torch.compile(gated)",
    ]
    assert isinstance(values["tuned"], ast.Call) and ast.unparse(values["tuned"].func) == "tunesmith.tune_kernel"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nothing", "there are 0"),
        ("```python\n# A notebook cell on an NVIDIA GPU\n" + "x = 1\n" * 13 + "```", "13 lines"),
    ],
)
def test_a_page_without_the_cell_or_with_a_longer_one_is_refused(text: str, wanted: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=wanted):
        notebook_cell.cell_of(page)


def tuned(**opponent: Any) -> Any:
    """What a cell leaves, with an opponent of twice the time."""
    best = SimpleNamespace(seconds=1e-5, ratio=0.5, low=0.4, high=0.8)
    other = {"label": "eager", "seconds": 2e-5, "ratio": 0.5, "low": 0.4, "high": 0.8, "why": "", **opponent}
    others = [SimpleNamespace(name=name, **other) for name in ("PyTorch", "torch.compile")]
    row = SimpleNamespace(
        workload="w", sizes={"n": 8}, baseline_seconds=2e-5, general=best, best=None, opponents=others
    )
    device = SimpleNamespace(to_json=lambda: {"name": "a GPU"})
    summary = SimpleNamespace(tuned=[row, row], sentence="Faster.", device=device)
    return SimpleNamespace(result=SimpleNamespace(summary=summary, valid=True), source="code")


def test_the_table_has_both_opponents_with_their_intervals() -> None:
    found = notebook_cell.table(tuned())
    assert notebook_cell.complete(found) and json.loads(json.dumps(found)) == found
    assert {"speedup": 2.0, "low": 1.25, "high": 2.5}.items() <= found["rows"][0].items()
    assert found["rows"][1]["opponents"][1] == {
        "name": "torch.compile",
        "label": "eager",
        "seconds": 2e-5,
        "speedup": 2.0,
        "low": 1.25,
        "high": 2.5,
    }


def test_an_opponent_that_was_not_timed_says_why_and_is_not_overlooked() -> None:
    found = notebook_cell.table(tuned(seconds=None, ratio=None, low=None, high=None, why="it raises ImportError"))
    assert found["rows"][0]["opponents"][0]["why"] == "it raises ImportError" and not notebook_cell.complete(found)


def test_a_cell_that_fails_leaves_its_error_with_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_cell, "cell_of", lambda: "raise RuntimeError('no GPU here')")
    monkeypatch.setenv("COMMIT", "abc1234")
    assert notebook_cell.main(["--out", str(tmp_path / "new" / "cell.json")]) == 1
    record = json.loads((tmp_path / "new" / "cell.json").read_text())
    assert record["commit"] == "abc1234" and record["error"]["type"] == "RuntimeError"
    assert {"command", "versions", "cell", "wall_seconds"} <= record.keys()


def test_what_torch_compiled_goes_to_other_processes_as_what_it_was_made_of() -> None:
    signature = read_signature("__global__ void k(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }", None)

    def plain(x: Any) -> Any:
        return 2 * x

    def compiled(x: Any) -> Any:
        raise AssertionError(x)

    compiled._torchdynamo_orig_callable = plain  # type: ignore[attr-defined]
    text = _text(signature, compiled, "x=given['x']", "numpy")
    assert "_given = torch.compile(_given)" in text
    namespace: dict[str, Any] = {}
    exec(text.replace("import torch", "").replace("torch.compile(_given)", "_given"), namespace)
    assert namespace["reference"](x=3) == {"y": 6}
    assert "torch" not in _text(signature, plain, "x=given['x']", "numpy")
