"""Objects in processes of their own, and what worker processes set up for themselves."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import pytest

from tunesmith.actors import process as isolated
from tunesmith.actors.process import Isolated
from tunesmith.actors.workers import CompileWorker
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.targets import resolve_target
from tunesmith.kernels.outcome import Crashed, TimedOut

sys_path_entry = str(Path(__file__).parent)


class Subject:
    """What runs over there."""

    def __init__(self, start: int = 0, seconds: float = 0.0) -> None:
        time.sleep(seconds)
        if start < 0:
            raise TunesmithError("It starts below zero: give another start.")
        self.count = start

    def add(self, more: int) -> tuple[int, int]:
        self.count += more
        return self.count, os.getpid()

    def size(self, data: bytes) -> int:
        return len(data)

    def mistake(self) -> None:
        raise TunesmithError("That is not a number: give another.")

    def bug(self) -> None:
        raise ZeroDivisionError("ours")

    def begin(self) -> int:
        """As a compiler begins an assembler."""
        return subprocess.Popen(["sleep", "600"]).pid

    def die(self, how: int) -> None:
        os.kill(os.getpid(), how)

    def alarm(self) -> int:
        return signal.alarm(0)

    def imported(self, name: str) -> bool:
        return getattr(sys.modules.get(name), "__file__", None) is not None

    def wait(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


def gone(pid: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_it_lives_between_calls_or_says_why_it_cannot_be_made() -> None:
    """Also after mistakes; neither an alarm nor the main module of this process comes with it."""
    with Isolated("run", Subject, 5) as subject:
        first, pid = subject.call("add", 20.0, 2)
        assert first == 7 and pid != os.getpid()
        with pytest.raises(TunesmithError, match="not a number"):
            subject.call("mistake", 20.0)
        with pytest.raises(RuntimeError, match="ZeroDivisionError: ours"):
            subject.call("bug", 20.0)
        assert subject.call("alarm", 20.0) == 0 and subject.call("imported", 20.0, "__mp_main__") is False
        assert subject.call("add", 20.0, 3) == (10, pid)
    assert gone(pid) and sys.modules["__main__"].__name__ == "__main__"
    with Isolated("run", Subject, -1) as subject:
        for _ in range(2):
            with pytest.raises(TunesmithError, match="below zero"):
                subject.call("add", 20.0, 1)


def test_each_end_of_the_process_is_told_once_and_the_next_call_has_a_new_one() -> None:
    """An overrun deadline, a signal of its own, a kill from outside between two calls, and a kill of ours, which is no
    crash. Processes that it began end with it."""
    killed = Crashed("run", "the process ended by signal 9 (SIGKILL)")
    with Isolated("run", Subject) as subject:
        pids = []
        for end in ("wait", "die", "outside", "ours"):
            total, pid = subject.call("add", 20.0, 1)
            assert total == 1
            pids.append(pid)
            begun = subject.call("begin", 20.0)
            if end == "wait":
                assert subject.call("wait", 0.2, 60.0) == TimedOut("run", 0.2)
            elif end == "die":
                crashed = Crashed("run", f"the process ended by signal {signal.SIGSEGV.value} (SIGSEGV)")
                assert subject.call("die", 20.0, signal.SIGSEGV) == crashed
            elif end == "outside":
                os.kill(pid, signal.SIGKILL)
                assert subject.call("add", 20.0, 1) == killed
            else:
                subject.kill()
            assert gone(pid) and gone(begun)
        assert subject.call("add", 20.0, 1)[0] == 1 and len(set(pids)) == 4


def test_sending_a_call_is_part_of_no_wait_without_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody reads takes some of a large argument, and then waits."""
    large = b"x" * (4 << 20)
    with Isolated("run", Subject, 0, 1.5) as slow:
        monkeypatch.setattr(isolated, "START_SECONDS", 0.3)
        started = time.monotonic()
        assert slow.call("size", 20.0, large) == TimedOut("start", 0.3)
        assert time.monotonic() - started < 1.3
        monkeypatch.undo()
        assert slow.call("size", 20.0, large) == len(large) == slow.call("size", 20.0, large)
        slow.end()
        threading.Timer(0.5, slow.kill).start()
        found = slow.call("size", 20.0, large)
        assert isinstance(found, Crashed) and "SIGKILL" in found.detail


def test_a_killed_fork_server_is_started_again_and_its_children_go_on() -> None:
    with Isolated("run", Subject) as first, Isolated("run", Subject) as second:
        _, pid = first.call("add", 60.0, 1)
        os.kill(int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
        assert first.call("add", 60.0, 1)[0] == 2, "its children go on"
        assert second.call("add", 60.0, 1)[0] == 1


@pytest.mark.parametrize("doing", ["call", "nothing"])
def test_a_process_and_what_it_started_end_with_their_host(doing: str) -> None:
    """In the middle of a call that never ends, and between calls."""
    command = [sys.executable, "-c", HOST, sys_path_entry, doing]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        pid, begun = int(host.stdout.readline()), int(host.stdout.readline())
        assert Path(f"/proc/{pid}").exists() and Path(f"/proc/{begun}").exists()
        time.sleep(0.3)
        host.kill()
        host.wait()
    assert gone(pid) and gone(begun)


HOST = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from test_actors_isolated import Subject
from tunesmith.actors.process import Isolated
subject = Isolated("run", Subject)
print(subject.call("add", 60.0, 1)[1], subject.call("begin", 60.0), sep="\\n", flush=True)
if sys.argv[2] == "call":
    subject.call("wait", 700.0, 600.0)
time.sleep(600)
"""


FAULTS = """
import ctypes, resource
from tunesmith.actors.workers import keep_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size) for size in (1 << 20, 8 << 20)]
    for block, size in zip(blocks, (1 << 20, 8 << 20)):
        ctypes.memset(block, 1, size)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if KEEP:
    assert keep_memory()
use()
print(use())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_a_compile_worker_meets_its_pages_once() -> None:
    def faults(keep: bool) -> int:
        code = FAULTS.replace("KEEP", str(keep))
        return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)

    # 9 MiB are 2304 pages of 4 KiB. Larger pages would make the first figure smaller, never the second larger.
    assert faults(keep=True) < 20 and faults(keep=False) > 100


def test_a_compiler_has_another_version_where_its_headers_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled with other headers is not found in the cache then."""
    pytest.importorskip("cuda.bindings")
    installed = {"nvidia-cuda-nvrtc": "13.0", "nvidia-cuda-cccl": "13.1", "nvidia-cuda-crt": "13.2"}
    installed |= {"nvidia-cuda-cccl-cu12": "12.1", "nvidia-cuda-nvcc-cu12": "12.2"}

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    # Without the bounds that a compile worker sets for its process.
    for name in ("limit_memory", "keep_memory", "os.nice"):
        monkeypatch.setattr(f"tunesmith.actors.workers.{name}", lambda *_: True)
    monkeypatch.setattr(metadata, "version", version)
    said, _ = CompileWorker(resolve_target("sm_90"), 0).start()
    assert all(f"{name} {one}" in said for name, one in installed.items()), said
