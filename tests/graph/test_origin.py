"""Where a run came from, as its journal keeps it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tunesmith.graph.run import origin_of


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


def test_the_command_and_the_tasks_commit_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/tunesmith", "tune", "a task/task.toml", "--seed", "7"])
    task = tmp_path / "a task" / "task.toml"
    task.parent.mkdir()
    task.write_text("")
    assert origin_of(str(task)).commit == "", "no repository"
    git(tmp_path, "init")
    assert origin_of(str(task)).commit == "", "the repository does not have the task"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "a task")
    found = origin_of(str(task))
    assert found.command == "tunesmith tune 'a task/task.toml' --seed 7"
    assert origin_of(str(task.parent)).commit == found.commit, "a task may be given as its folder"
    assert len(found.commit) == 12 and found.host and found.python.startswith("3.")
    task.write_text("# edited")
    assert origin_of(str(task)).commit == f"{found.commit}-dirty"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert origin_of(str(task)).commit == "", "no git"
