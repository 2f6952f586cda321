"""What every backend's compiler and device must do. A new backend adds one entry to `SUFFIXES`, its sources and one
test module that inherits from `CompilerContract` and `DeviceContract` with fixtures of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tunesmith.kernels.backends import LEFT_BEHIND, BoundLaunch, Compiler, Device, DeviceError, OutOfDeviceMemory
from tunesmith.kernels.build.artifact import Artifact
from tunesmith.kernels.build.source import Specialised
from tunesmith.kernels.outcome import CompileFailed, Rejected
from tunesmith.kernels.spec.task import Geometry
from tunesmith.kernels.spec.template import BackendName

FILES = Path(__file__).with_name("sources")
SUFFIXES: dict[BackendName, str] = {"cuda": "cu", "opencl": "cl"}
SOURCES = {
    backend: {name: (FILES / f"{name}.{suffix}").read_text() for name in ("add", "static", "dynamic", "found")}
    for backend, suffix in SUFFIXES.items()
}


def compiled(compiler: Compiler, backend: BackendName, text: str, entry: str, **options: Any) -> Artifact:
    answer = compiler.compile(Specialised(backend, entry, text, **options))
    assert isinstance(answer, Artifact), answer
    return answer


class CompilerContract:
    """Needs the fixtures `backend` (its name) and `compiler`."""

    def test_an_artifact_says_what_it_is_and_takes(self, backend: BackendName, compiler: Compiler) -> None:
        source = Specialised(backend, "add", SOURCES[backend]["add"])
        artifact = compiler.compile(source)
        assert isinstance(artifact, Artifact)
        assert (artifact.backend, artifact.entry, artifact.digest) == (backend, "add", source.digest)
        assert artifact.code and artifact.arch and compiler.version and artifact.resources.shared == 0
        # A compiler that answers from a cache must still tell. The machine code itself may differ: PoCL's binaries hold
        # whatever files its cache has for the source at that moment, and other processes write there too.
        text = SOURCES[backend]["static"]
        first, second = (compiled(compiler, backend, text, "shared") for _ in range(2))
        assert replace(first, code=b"") == replace(second, code=b"")
        assert compiled(compiler, backend, text, "shared").resources.shared == 1024
        assert compiled(compiler, backend, text, "other").resources.shared == 16000
        assert compiled(compiler, backend, text + SOURCES[backend]["add"], "add").resources.shared == 0

    def test_an_error_has_its_line_and_ends_nothing(self, backend: BackendName, compiler: Compiler) -> None:
        text = '#line 1 "mine"\n' + SOURCES[backend]["add"].replace("+= (int)by", "+= nothing")
        answer = compiler.compile(Specialised(backend, "add", text))
        assert isinstance(answer, CompileFailed) and "nothing" in answer.first_error and "error" in answer.first_error
        assert answer.first_error.replace("mine(3)", "mine:3").find("mine:3") >= 0, answer.first_error
        assert "\n" not in answer.first_error and answer.first_error in answer.log
        answer = compiler.compile(Specialised(backend, "nowhere", SOURCES[backend]["add"]))
        assert isinstance(answer, CompileFailed)
        assert "defines no kernel" in answer.first_error and "void nowhere(...)" in answer.first_error
        assert isinstance(compiler.compile(Specialised(backend, "add", "nonsense")), CompileFailed)
        compiled(compiler, backend, SOURCES[backend]["add"], "add")

    @pytest.mark.parametrize("text", ["", "}}}", "#error on purpose", "int \u00e9;"])
    def test_no_source_raises(self, backend: BackendName, compiler: Compiler, text: str) -> None:
        answer = compiler.compile(Specialised(backend, "add", text))
        assert isinstance(answer, CompileFailed) and answer.first_error.strip()
        assert "\0" not in answer.first_error + answer.log

    @pytest.mark.parametrize("name", ['"{}/secret.h"', "<{}/secret.h>", '"secret.h"', "<secret.h>", '"../secret.h"'])
    def test_files_of_the_machine_are_out_of_reach(
        self, backend: BackendName, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        (tmp_path / "secret.h").write_text("@ hidden words @\n")
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here" if ".." in name else tmp_path)
        text = SOURCES[backend]["add"]
        answer = compiler.compile(Specialised(backend, "add", f"#include {name.format(tmp_path)}\n{text}"))
        assert isinstance(answer, Rejected) and answer.reason == "forbidden_source" and "hidden" not in str(answer)


class DeviceContract:
    """Needs the fixtures `backend`, `compiler` and `opened` (a `Device` held by this process)."""

    def filled(self, opened: Device, values: Any) -> Any:
        data = np.asarray(values).view(np.uint8)
        size = max(4096, data.nbytes)
        buffer = opened.allocate(size)
        opened.write(buffer, np.pad(data.reshape(-1), (0, size - data.nbytes)))
        return buffer

    def words(self, opened: Device, buffer: Any, count: int) -> NDArray[np.uint32]:
        return opened.read(buffer)[: 4 * count].view(np.uint32)

    def ints(self, opened: Device, buffer: Any, count: int) -> list[int]:
        return self.words(opened, buffer, count).view(np.int32).tolist()

    def adding(self, opened: Device, compiler: Compiler, backend: BackendName) -> Any:
        return opened.load(compiled(compiler, backend, SOURCES[backend]["add"], "add"))

    def test_it_says_what_it_is(self, backend: BackendName, opened: Device) -> None:
        assert opened.backend == backend == opened.limits.backend
        assert opened.uuid and opened.cold_bytes > 0 and opened.free_bytes() > 0 and hasattr(opened.xp, "isnan")

    def test_bytes_come_back_from_copies_and_views_and_nothing_beyond_the_end(self, opened: Device) -> None:
        buffer = self.filled(opened, np.arange(8, dtype=np.int32))
        assert self.ints(opened, buffer, 8) == list(range(8)) and len(opened.read(buffer)) == 4096
        opened.write(buffer, np.full(4, 255, np.uint8), 8)
        assert self.ints(opened, buffer, 4) == [0, 1, -1, 3]
        # Arrays of the device's own kind are taken as well.
        opened.write(buffer, opened.xp.full(4, 1, opened.xp.uint8), 4)
        assert self.ints(opened, buffer, 4) == [0, 0x01010101, -1, 3]
        source = self.filled(opened, np.arange(1024, dtype=np.int32))
        target = opened.allocate(8192)
        opened.write(target, np.full(8192, 7, np.uint8))
        opened.copy(target, source)
        opened.synchronize()
        after = opened.read(target)
        assert (after[:4096].view(np.int32) == np.arange(1024)).all() and (after[4096:] == 7).all()
        buffer = self.filled(opened, np.arange(1024, dtype=np.int32))
        window = opened.view(buffer, 512, 256)
        assert opened.read(window).view(np.int32).tolist() == list(range(128, 192))
        opened.write(window, np.zeros(256, np.uint8))
        assert self.ints(opened, buffer, 193)[127:129] == [127, 0] and self.ints(opened, buffer, 193)[191:] == [0, 192]
        buffer = self.filled(opened, np.arange(4, dtype=np.int32))
        with pytest.raises(DeviceError):
            opened.view(buffer, 4096, 512)
        with pytest.raises(DeviceError):
            opened.view(buffer, 512, 4096)
        with pytest.raises(DeviceError):
            opened.write(buffer, np.zeros(4097, np.uint8))
        assert self.ints(opened, buffer, 4) == [0, 1, 2, 3]
        buffer = opened.view(self.filled(opened, np.array([0x3F80, 0xFFFF], np.uint16)), 0, 4)
        assert opened.array(buffer, "bfloat16").tolist() == [0x3F80, 0xFFFF]

    @pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint64", "bool"])
    def test_arrays_have_the_storage_type(self, opened: Device, dtype: str) -> None:
        values = np.array([1, 0, 1, 1], dtype)
        array = opened.array(opened.view(self.filled(opened, values), 0, values.nbytes), dtype)
        assert array.dtype == np.dtype(dtype) and array.shape == (4,) and array.tolist() == values.tolist()

    def test_launches_and_dynamic_memory(self, backend: BackendName, compiler: Compiler, opened: Device) -> None:
        kernel = self.adding(opened, compiler, backend)
        buffer = self.filled(opened, np.arange(200, dtype=np.int32))
        arguments = (buffer, np.int32(100), np.float32(5))
        opened.launch(BoundLaunch(kernel, Geometry((4, 1, 1), (32, 1, 1)), arguments))
        opened.synchronize()
        assert self.ints(opened, buffer, 200) == [i + 5 if i < 100 else i for i in range(200)]
        window = opened.view(buffer, 512, 256)
        opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), (32, 1, 1)), (window, np.int32(2), np.float32(-1))))
        opened.synchronize()
        assert self.ints(opened, buffer, 131)[127:] == [127, 127, 128, 130]
        kernel = opened.load(compiled(compiler, backend, SOURCES[backend]["dynamic"], "turn"))
        most = opened.limits.shared_per_block_optin or 4096
        for shared in (1024, most // 4 * 4):
            buffer = self.filled(opened, np.arange(256, dtype=np.int32))
            opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), (256, 1, 1), shared), (buffer,)))
            opened.synchronize()
            assert self.ints(opened, buffer, 256) == list(range(255, -1, -1)), shared

    def test_what_nobody_wrote_is_not_zero(self, backend: BackendName, compiler: Compiler, opened: Device) -> None:
        """In shared memory of all multiprocessors, also at its end, and in a thread's own."""
        kernel = opened.load(compiled(compiler, backend, SOURCES[backend]["found"], "found"))
        blocks, left = 2 * (opened.limits.sm_count or 1), next(LEFT_BEHIND)
        for shared in (256, 64 << 10):
            # A CPU's core that another process holds misses turns.
            for _ in range(100):
                buffer = self.filled(opened, np.zeros(blocks * 128, np.uint32))
                opened.pollute()
                opened.launch(BoundLaunch(kernel, Geometry((blocks, 1, 1), (64, 1, 1), shared), (buffer,)))
                opened.synchronize()
                shared_words, own_words = np.isin(self.words(opened, buffer, 128 * blocks), left).reshape(2, -1)
                # The rest of a CPU's stack is the compiler's.
                found = bool(shared_words.all()) and own_words.mean() > 0.5
                if found:
                    break
            assert found

    def test_launches_and_sequences_are_timed_where_they_run(self, backend: Any, compiler: Any, opened: Device) -> None:
        kernel, shape = self.adding(opened, compiler, backend), Geometry((1 << 13, 1, 1), (128, 1, 1))
        first, second = (self.filled(opened, np.zeros(1 << 20, np.int32)) for _ in range(2))
        one, ten = (
            BoundLaunch(kernel, shape, (buffer, np.int32(1 << 20), np.float32(by)))
            for buffer, by in ((first, 1), (second, 10))
        )
        assert 0 < opened.once(one) < 1
        assert set(self.ints(opened, first, 1 << 20)) == {1}, "it has ended"
        few, many = opened.sequence([one]), opened.sequence([one, ten] * 10)
        # More work takes longer, also where sequences are timed together.
        rounds = [[*opened.times([few]), *opened.times([many, few])] for _ in range(5)]
        assert set(self.ints(opened, first, 1 << 20)) == {1 + 5 * 12}
        assert set(self.ints(opened, second, 1 << 20)) == {5 * 100}
        alone, longer, after = (min(times) for times in zip(*rounds, strict=True))
        assert 0 < 4 * max(alone, after) < longer < 1

    def test_memory_that_is_not_there(self, opened: Device) -> None:
        with pytest.raises(OutOfDeviceMemory) as caught:
            opened.allocate(1 << 50)
        assert not caught.value.sticky and str(caught.value)
        assert opened.allocate(4096) is not None

    @pytest.mark.parametrize("block", [(1 << 20, 1, 1), (0, 1, 1)])
    def test_a_launch_that_cannot_be(self, backend: Any, compiler: Compiler, opened: Device, block: Any) -> None:
        kernel = self.adding(opened, compiler, backend)
        buffer = self.filled(opened, np.arange(4, dtype=np.int32))
        arguments = (buffer, np.int32(4), np.float32(1))
        with pytest.raises(DeviceError) as caught:
            opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), block), arguments))
            opened.synchronize()
        assert not caught.value.sticky
        # Nothing is lost.
        opened.launch(BoundLaunch(kernel, Geometry((1, 1, 1), (4, 1, 1)), arguments))
        opened.synchronize()
        assert self.ints(opened, buffer, 4) == [1, 2, 3, 4]

    def test_code_that_is_none(self, backend: BackendName, opened: Device) -> None:
        with pytest.raises(DeviceError):
            opened.load(Artifact(backend, "x", "add", b"this is no machine code", "digest"))
