"""The lock of a device: one process of the machine at a time, whoever runs it and however it waits."""

import multiprocessing
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tunesmith.hw import device_lock as exclusive
from tunesmith.hw.device_lock import FOLDER_VARIABLE, DeviceLock, lock_folder
from tunesmith.hw.errors import TunesmithError

HOLDER = """
import sys
from pathlib import Path
from tunesmith.hw import device_lock as exclusive
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
def another(folder: Path, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process that wants the device, and its line that says whether it got it. It keeps it until the end."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as one:
        try:
            yield one, one.stdout.readline().strip()
        finally:
            one.communicate()


def test_processes_with_folders_of_their_own_for_temporary_files_take_turns(folder: Path, tmp_path: Path) -> None:
    """As each job has under Slurm."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with another(folder, tmp_path / "one") as (_, first), another(folder, tmp_path / "two") as (_, second):
        assert (first, second) == ("True", "False")
        assert not DeviceLock("GPU-test").try_acquire()
    lock = DeviceLock("GPU-test")
    assert lock.try_acquire() and lock.try_acquire()
    lock.release()
    with DeviceLock("GPU-test") as other:
        assert not lock.try_acquire()
        other.release()
        assert lock.try_acquire(), "released once, however often it was acquired"
    lock.release()


def test_all_users_write_to_one_folder_and_may_name_another(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    before = os.umask(0o077)
    try:
        with DeviceLock("GPU-test"):
            modes = {path.suffix: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    finally:
        os.umask(before)
    assert modes == {"": 0o777, ".lock": 0o666}
    # One that only this user, or only root, may write to is not the folder of all.
    folder.chmod(0o755)
    assert folder not in lock_folder().parents
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert lock_folder().parent == tmp_path
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(TunesmithError, match=r"TUNESMITH_LOCK_DIR names .*missing, which is not a folder: make it"):
        DeviceLock("GPU-test")


def test_the_lock_of_a_killed_process_is_free_and_a_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    with another(folder, tmp_path) as (holder, got):
        assert got == "True"
        lock = DeviceLock("GPU-test")
        assert not lock.try_acquire() and f"pid {holder.pid}, -c" in lock.waiting_for()
        holder.kill()
    with lock:
        assert f"pid {os.getpid()}, " in DeviceLock("GPU-test").waiting_for()
    precious = tmp_path / "precious"
    precious.write_text("kept")
    (lock_folder() / "GPU-other.lock").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        DeviceLock("GPU-other").try_acquire()
    assert precious.read_text() == "kept"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become other users")
def test_users_share_the_locks_of_a_sticky_folder() -> None:
    """Outside pytest's folders, which are its user's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o1777)
        # One makes the folder, another the file, a third uses both.
        for user, device in ((1001, "GPU-a"), (1002, "GPU-b"), (1003, "GPU-b")):
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
                assert pool.submit(taken_as, user, shared, device).result(30)
        Path(shared, "tunesmith-locks").chmod(0o755)
        with (
            ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool,
            pytest.raises(TunesmithError, match="tunesmith-locks is not writable: let its owner chmod it to 777"),
        ):
            pool.submit(taken_as, 1003, shared, "GPU-b").result(30)


def taken_as(user: int, shared: str, device: str) -> bool:
    """Whether this user, with a strict umask, holds the device after trying; in a process for it alone."""
    exclusive.SHARED_FOLDERS = (Path(shared),)
    os.environ.pop(FOLDER_VARIABLE, None)
    os.umask(0o077)
    os.setuid(user)
    return DeviceLock(device).try_acquire()


def test_a_process_that_waits_gets_a_device_that_another_takes_again_at_once(folder: Path) -> None:
    """As a tuning does from visit to visit."""
    first, second = DeviceLock("GPU-test"), DeviceLock("GPU-test")
    first.acquire()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    deadline = time.monotonic() + 30.0
    while waiting.is_alive() and time.monotonic() < deadline:
        time.sleep(0.005)
        first.release()
        time.sleep(0.001)
        first.try_acquire()
    assert not waiting.is_alive() and not first.try_acquire()
    second.release()


def test_a_wait_that_an_exception_ended_gets_nothing_and_may_be_tried_again(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(exclusive, "REPORT_AFTER_SECONDS", 0.05)
    holder, waiting, said = DeviceLock("GPU-test"), DeviceLock("GPU-test"), list[str]()

    def interrupt(text: str) -> None:
        holder.release()
        raise KeyboardInterrupt

    def release(text: str) -> None:
        said.append(text)
        holder.release()

    holder.acquire()
    with pytest.raises(KeyboardInterrupt):
        waiting.acquire(interrupt)
    assert holder.try_acquire(), "nothing is left of the wait"
    waiting.acquire(release)
    assert said and said[0].startswith("waiting for the device: ")
    assert not holder.try_acquire()
    waiting.release()
