"""The notebook cell for a GPU in docs/bring-your-kernel.md, and its references, as far as they need no GPU."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from tunesmith.graph.tune_kernel import _text
from tunesmith.kernels.rewrite.examples import read_signature

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bring-your-kernel.md"


def test_the_cell_for_a_gpu_is_short_and_its_source_is_understood() -> None:
    (cell,) = re.findall(r"```python\n# A notebook cell on an NVIDIA GPU\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert sum(map(bool, map(str.strip, cell.splitlines()))) <= 12
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
