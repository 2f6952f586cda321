"""The exported PyTorch operator on a machine without a GPU: tensors of the CPU take the place of a GPU's, and launches
go to a driver that keeps what it is asked. Its function, which goes past PyTorch's dispatcher where nothing needs it,
against `torch.ops`."""

import ctypes
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_runs import StubDriver, write_cuda_run

from tunesmith.graph.results.exports import export_run

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("exports")
DATA = Path(__file__).resolve().parents[1] / "data"
FOLDER = "exported_{}"


class Operator:
    """An export that was imported. registered: how many calls went through the dispatcher."""

    def __init__(self, task: str, arguments: int, stub: StubDriver) -> None:
        importlib.invalidate_caches()
        self.module = importlib.import_module(FOLDER.format(task))
        runtime = importlib.import_module(f"{FOLDER.format(task)}.runtime")
        self.module._KERNELS.driver = runtime.Library(str(stub.file))
        self.stub, self.arguments, self.registered = stub, arguments, 0
        self.function: Callable[..., Any] = getattr(self.module, task)
        self.operator = getattr(getattr(torch.ops, FOLDER.format(task)), task).default
        self.module._OPERATOR = self._count

    def _count(self, *given: Any) -> Any:
        self.registered += 1
        return self.operator(*given)

    def ways_of(self, call: Callable[[], Any]) -> tuple[int, int]:
        """How many launches a call made, and how often it went through the dispatcher."""
        before = self.stub.launches, self.registered
        call()
        return self.stub.launches - before[0], self.registered - before[1]

    def launched(self, call: Callable[[], Any]) -> tuple[Any, tuple[int, ...], list[int]]:
        """What a call returns, and what the driver is given for its launch."""
        self.stub.library.stub_takes(self.arguments)
        try:
            return call(), self.stub.last(), self.stub.arguments(self.arguments)
        finally:
            self.stub.library.stub_takes(4)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], Operator]]:
    """Exports a task of so many arguments; each task once, since PyTorch takes an operator once."""
    folder = tmp_path_factory.mktemp("operators")
    stub = StubDriver(folder)
    made: dict[str, Operator] = {}

    def export(task: str, arguments: int) -> Operator:
        if task not in made:
            file = DATA / task / "task.toml"
            package = write_cuda_run(folder / f"run-{task}", str(file) if file.is_file() else task, {}, most=1)
            out = export_run(package.folder, "torch", folder / f"out-{task}") / f"{task}_tuned"
            to_cpu(out.rename(folder / FOLDER.format(task)))
            made[task] = Operator(task, arguments, stub)
        return made[task]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)  # type: ignore[no-untyped-call]
        patch.setenv("TUNESMITH_CACHE", str(tmp_path_factory.mktemp("cache")))
        # A build of PyTorch without CUDA lacks them.
        patch.setattr(torch._C, "_cuda_getDevice", lambda: -1, raising=False)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
        yield export


def to_cpu(package: Path) -> None:
    """Lets the operator take the CPU's tensors, under a name of its own."""
    for file, changes in (
        ("torch_calls.py", (('"CUDA")', '"CPU")'), (".is_cuda", ".is_cpu"))),
        ("__init__.py", ((".is_cuda", ".is_cpu"), (f"{package.name.removeprefix('exported_')}_tuned", package.name))),
    ):
        text = (package / file).read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (package / file).write_text(text, encoding="utf-8")


@pytest.fixture
def norm(make: Callable[[str, int], Operator]) -> Operator:
    """Two arrays that are written to, one that is read, and a scalar that a caller may choose."""
    return make("fused_add_rmsnorm", 6)


@pytest.fixture
def merge(make: Callable[[str, int], Operator]) -> Operator:
    """Four arrays that are read, two that are returned."""
    return make("merge_attn_states", 9)


def norm_arrays(n: int = 4, d: int = 1024) -> list[Any]:
    return [torch.ones(n, d, dtype=torch.float16), torch.ones(n, d, dtype=torch.float16), torch.ones(d).half()]


def merge_arrays(n: int = 4) -> list[Any]:
    return [torch.ones(n, 2, 128).half(), torch.ones(2, n), torch.ones(n, 2, 128).half(), torch.ones(2, n)]


def low(tensor: Any) -> int:
    """An address as the stub shows it: its first four bytes."""
    return ctypes.c_int32(tensor.data_ptr()).value


def test_the_first_call_is_dispatched_and_the_next_ones_launch_the_same(norm: Operator, merge: Operator) -> None:
    arrays, given = norm_arrays(n=6), merge_arrays(n=6)
    assert [norm.ways_of(lambda: norm.function(*arrays)) for _ in range(2)] == [(1, 1), (1, 0)]
    found = norm.launched(lambda: norm.function(*arrays, 0.5))
    assert found == norm.launched(lambda: norm.operator(*arrays, 0.5))
    assert found[0] is None and found[1][7] == 77 and found[2][:3] == [low(one) for one in arrays]
    assert found[2][3:] == [ctypes.c_int32.from_buffer(ctypes.c_float(0.5)).value, 6, 1024]
    assert norm.function(input=arrays[0], weight=arrays[2], residual=arrays[1]) is None
    merge.function(*given)
    direct, dispatched = (merge.launched(lambda way=way: way(*given)) for way in (merge.function, merge.operator))
    assert direct[1] == dispatched[1] and direct[2][2:] == dispatched[2][2:] == [*map(low, given), 6, 2, 128]
    for returned, _, seen in (direct, dispatched):
        assert seen[:2] == [low(one) for one in returned]
        assert [(one.shape, one.stride()) for one in returned] == [(one.shape, one.stride()) for one in given[:2]]
        assert [one.dtype for one in returned] == [torch.float16, torch.float32]


def test_each_shape_is_dispatched_once_and_parameters_are_plain_tensors(norm: Operator) -> None:
    for arrays in (norm_arrays(n=8), norm_arrays(n=8, d=2048), norm_arrays(n=0)):
        none = int(0 in arrays[0].shape)
        assert norm.ways_of(lambda arrays=arrays: norm.function(*arrays)) == (1 - none, 1)
        assert norm.ways_of(lambda arrays=arrays: norm.function(*arrays)) == (1 - none, 0)
    arrays = [*norm_arrays(n=8)[:2], torch.nn.Parameter(torch.ones(1024).half())]
    assert norm.ways_of(lambda: norm.function(*arrays)) == (1, 1), "it may need a derivative"
    with torch.no_grad():
        assert norm.ways_of(lambda: norm.function(*arrays)) == (1, 0)
    with torch.inference_mode():
        assert norm.ways_of(lambda: norm.function(*norm_arrays(n=8))) == (1, 0)


def test_sizes_that_no_array_tells_are_told_apart(make: Callable[[str, int], Operator]) -> None:
    scale, x = make("flat_scale", 5), torch.ones(64 * 4096)
    for rows, columns in ((64, 4096), (128, 2048)):
        assert scale.ways_of(lambda rows=rows, columns=columns: scale.function(x, rows, columns)) == (1, 1)
        for way in (scale.function, scale.operator):
            out, _, seen = scale.launched(lambda way=way, rows=rows, columns=columns: way(x, rows, columns))
            factor = ctypes.c_int32.from_buffer(ctypes.c_float(2)).value
            assert seen == [low(x), low(out), factor, rows, columns] and out.shape == x.shape
    for way in (scale.function, scale.operator):
        with pytest.raises(ValueError, match="flat_scale: x must have the shape"):
            way(x, 64, 4095)


class Own(torch.Tensor):  # type: ignore[misc, unused-ignore]
    """A subclass that PyTorch asks about each function."""

    asked: int = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Own.asked += 1
        return super().__torch_function__(function, types, args, kwargs or {})


def test_what_needs_the_dispatcher_goes_through_it(norm: Operator, merge: Operator) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.overrides import BaseTorchFunctionMode
    from torch.utils._python_dispatch import BaseTorchDispatchMode

    arrays, given = norm_arrays(n=12), merge_arrays(n=12)
    norm.function(*arrays)
    merge.function(*given)
    assert norm.ways_of(lambda: norm.function(*arrays)) == (1, 0)
    for mode in (BaseTorchFunctionMode, BaseTorchDispatchMode):
        with mode():
            assert norm.ways_of(lambda: norm.function(*arrays)) == (1, 1), mode
    own = arrays[0].as_subclass(Own)
    before = Own.asked
    assert norm.ways_of(lambda: norm.function(own, *arrays[1:])) == (1, 1) and Own.asked > before
    assert norm.ways_of(lambda: norm.function(*arrays, 1)) == (1, 1), "a whole number is converted"

    def transformed(x: Any) -> Any:
        merge.function(*given)
        return x.sum()

    assert merge.ways_of(lambda: torch.func.grad(transformed)(torch.ones(2))) == (1, 1)
    assert merge.ways_of(lambda: torch.vmap(transformed)(torch.ones(2, 2))) == (1, 1)
    wanting = [given[0].clone().requires_grad_(), *given[1:]]
    assert merge.ways_of(lambda: merge.function(*wanting)) == (1, 1)
    with torch.no_grad():
        assert merge.ways_of(lambda: merge.function(*wanting)) == (1, 0)
    meta = merge.function(*(one.to("meta") for one in given))
    assert [one.device.type for one in meta] == ["meta", "meta"] and meta[1].shape == (2, 12)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        made, _ = merge.function(*(fake.from_tensor(one) for one in given))
        assert type(made).__name__ == "FakeTensor" and made.shape == (12, 2, 128)


def test_a_compiled_exported_or_traced_function_has_the_operator_in_it(merge: Operator) -> None:
    given = merge_arrays(n=14)
    for _ in range(2):
        merge.function(*given)
    found: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        found.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    merge.module._OPERATOR = merge.operator
    try:
        compiled = torch.compile(lambda *all_: merge.function(*all_)[0] + 1, backend=backend, fullgraph=True)
        assert compiled(*given).shape == (14, 2, 128) and merge.operator in found

        class Module(torch.nn.Module):  # type: ignore[misc, unused-ignore]
            def forward(self, *all_: Any) -> Any:
                return merge.function(*all_)

        for strict in (True, False):
            nodes = torch.export.export(Module(), tuple(given), strict=strict).graph.nodes
            assert merge.operator in [node.target for node in nodes], strict
        with warnings.catch_warnings():
            # That tracing is deprecated, and that results differ: the stub computes nothing.
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(lambda *all_: merge.function(*all_), tuple(given), check_trace=False)
        assert "exported_merge_attn_states::merge_attn_states" in str(traced.graph)
    finally:
        merge.module._OPERATOR = merge._count


Arrays = list[Any]
WRONG: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "size": (lambda given: [given[0][:, :512].contiguous(), *given[1:]], "residual must have the shape (n, d)"),
    "type": (lambda given: [given[0], given[1].float(), given[2]], "residual must be of the type float16"),
    "gaps": (lambda given: [given[0], given[1].repeat(1, 2)[:, ::2], given[2]], "pass residual.contiguous()."),
    "alignment": (lambda given: [*given[:2], torch.ones(1025).half()[1:]], "16 bytes; pass weight.clone()."),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_both_ways_refuse_in_the_same_words_and_launch_nothing(wrong: str, norm: Operator) -> None:
    spoil, words = WRONG[wrong]
    arrays = norm_arrays(n=16)
    for _ in range(2):
        norm.function(*arrays)
    said, launches = [], norm.stub.launches
    for way in (norm.function, norm.operator, norm.function):
        with pytest.raises(ValueError) as caught:
            way(*spoil(arrays))
        said.append(str(caught.value))
    assert said[0] == said[1] == said[2] and said[0].startswith("fused_add_rmsnorm: ") and words in said[0]
    assert norm.stub.launches == launches
    for way in (norm.function, norm.operator):
        with pytest.raises(RuntimeError, match="Expected a value of type 'Tensor' for argument 'weight'"):
            way(*arrays[:2], "weight")


def test_each_thread_has_arguments_of_its_own(norm: Operator) -> None:
    together = threading.Barrier(2)

    def work() -> None:
        arrays = norm_arrays(n=18)
        together.wait()
        for _ in range(3):
            norm.function(*arrays)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    launches = [plan[1] for key, plan in norm.module._PLANS.items() if (18, 1024) in key]
    assert len(launches) == 2 and launches[0].slots[0] is not launches[1].slots[0]


def test_without_private_names_every_call_is_dispatched(norm: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_is_tracing")
    monkeypatch.setattr(norm.module, "torch_calls", norm.module.torch_calls)
    monkeypatch.delitem(sys.modules, f"{norm.module.__name__}.torch_calls")
    calls = importlib.import_module(f"{norm.module.__name__}.torch_calls")
    assert calls.current_device is torch.cuda.current_device
    monkeypatch.setattr(norm.module, "_PLAIN", calls.PLAIN)
    arrays = norm_arrays(n=20)
    assert [norm.ways_of(lambda: norm.function(*arrays)) for _ in range(2)] == [(1, 1), (1, 1)]
