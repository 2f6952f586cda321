"""The lock of a device: one process of the machine at a time, whoever runs it and however it waits."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tunesmith.hw import exclusive
from tunesmith.hw.errors import TunesmithError
from tunesmith.hw.exclusive import FOLDER_VARIABLE, DeviceLock, lock_folder

HOLDER = """
import sys
from pathlib import Path
from tunesmith.hw import exclusive
exclusive.SHARED_FOLDERS = (Path(sys.argv[1]),)
lock = exclusive.DeviceLock("GPU-test")
print(lock.try_acquire(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where all processes of the machine have their locks, for this test."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(exclusive, "SHARED_FOLDERS", (tmp_path / "missing", shared))
    return shared


@contextmanager
def another(folder: Path, temporary: Path) -> Iterator[str]:
    """Another process that wants the device; what it said of having got it. It keeps it until the end."""
    temporary.mkdir()
    command = [sys.executable, "-c", HOLDER, str(folder)]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as one:
        assert one.stdout is not None
        try:
            yield one.stdout.readline().strip()
        finally:
            one.communicate()


def test_processes_with_folders_of_their_own_for_temporary_files_take_turns(folder: Path, tmp_path: Path) -> None:
    """As each job has under Slurm."""
    with another(folder, tmp_path / "one") as first, another(folder, tmp_path / "two") as second:
        assert (first, second) == ("True", "False")
        assert not DeviceLock("GPU-test").try_acquire()
    lock = DeviceLock("GPU-test")
    assert lock.try_acquire() and lock.try_acquire()
    lock.release()


def test_all_users_choose_one_folder_and_may_write_there(folder: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with DeviceLock("GPU-test"):
            modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(before)
    assert modes == {".lock": 0o666, ".queue": 0o666}
    # One that only this user, or only root, may write to is not the folder of all.
    folder.chmod(0o755)
    assert lock_folder() != folder


def test_the_folder_may_be_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert lock_folder() == tmp_path
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(TunesmithError, match=r"TUNESMITH_LOCK_DIR names .*missing, which is not a folder: make it"):
        DeviceLock("GPU-test")


def test_a_file_that_may_only_be_read_is_locked_and_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    with DeviceLock("GPU-test"):
        pass
    for path in folder.iterdir():
        path.chmod(0o444)
    with DeviceLock("GPU-test"):
        assert not DeviceLock("GPU-test").try_acquire()
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (folder / "tunesmith-GPU-other.lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        DeviceLock("GPU-other").try_acquire()
    assert precious.read_text() == "kept"


class TestInterrupted:
    """A wait that was left by an exception gets nothing afterwards."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exclusive, "REPORT_AFTER_SECONDS", 0.05)

    def interrupt(self, said: str) -> None:
        raise KeyboardInterrupt

    def test_it_does_not_take_the_device_when_that_is_free(self, folder: Path) -> None:
        holder, waiting = DeviceLock("GPU-test"), DeviceLock("GPU-test")
        holder.acquire()
        with pytest.raises(KeyboardInterrupt):
            waiting.acquire(self.interrupt)
        waiting.release()
        holder.release()
        # The thread that waited gets it now, and lets go.
        deadline = time.monotonic() + 10.0
        while not (free := holder.try_acquire()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert free

    def test_nor_what_it_got_while_it_was_interrupted(self, folder: Path) -> None:
        holder, waiting = DeviceLock("GPU-test"), DeviceLock("GPU-test")
        holder.acquire()

        def release_and_fail(said: str) -> None:
            holder.release()
            time.sleep(0.2)
            raise RuntimeError("a mistake of ours")

        with pytest.raises(RuntimeError):
            waiting.acquire(release_and_fail)
        assert holder.try_acquire()
        holder.release()

    def test_it_may_be_tried_again(self, folder: Path) -> None:
        holder, waiting = DeviceLock("GPU-test"), DeviceLock("GPU-test")
        holder.acquire()
        with pytest.raises(KeyboardInterrupt):
            waiting.acquire(self.interrupt)
        said: list[str] = []

        def report(text: str) -> None:
            said.append(text)
            holder.release()

        waiting.acquire(report)
        assert said and said[0].startswith("waiting for the device: ")
        assert not holder.try_acquire()
        waiting.release()
