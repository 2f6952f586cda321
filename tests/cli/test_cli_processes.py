"""Runs in processes of their own. `ray job submit` against a cluster that the test starts, with token authentication
on: from a working directory, and from a wheel; runs that join a cluster that is there, or is not; the cluster file of
the documentation. Ctrl-C and kill -9 in the middle of a run, then `tunesmith resume`."""

import json
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from journal_rows import Row, rows

REPOSITORY = Path(__file__).resolve().parent.parent.parent
RAY = str(Path(sys.executable).with_name("ray"))
OPTIONS = ["--backend", "opencl", "--evaluations", "2", "--rounds", "1", "--json"]
TASK = str(REPOSITORY / "tests" / "data" / "scale_add" / "task.toml")


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    with ExitStack() as stack:
        for one in sockets:
            stack.enter_context(one).bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def submit(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Submits a job to a cluster of one node: options, the command, its folder."""
    # Sockets live there, whose paths must be short.
    folder = Path("/tmp") / f"tunesmith-jobs-{os.getpid()}"
    ports = free_ports(6)
    own = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    own |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TUNESMITH_CACHE": str(tmp_path_factory.mktemp("cache")),
    }
    names = ("port", "dashboard-port", "ray-client-server-port", "dashboard-agent-listen-port")
    names += ("metrics-export-port", "dashboard-agent-grpc-port")
    options = ["--num-cpus", "3", "--temp-dir", str(folder), "--node-ip-address", "127.0.0.1"]
    options += [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        [RAY, "start", "--head", "--block", *options], env=own, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with closing(socket.create_connection(("127.0.0.1", ports[1]), timeout=1)):
                    break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, "the head does not come up"
                time.sleep(0.3)

        def submit(options: list[str], command: list[str], folder: Path) -> Any:
            # The cluster's job agent is up some 15 s after the start.
            run = [RAY, "job", "submit", "--address", f"http://127.0.0.1:{ports[1]}", *options, "--", *command]
            deadline = time.monotonic() + 90
            while True:
                done = subprocess.run(run, capture_output=True, text=True, timeout=110, cwd=folder, env=own)
                text = done.stdout + done.stderr
                not_up = "No available agent" in text or "Failed to connect" in text or "Connection refused" in text
                if not not_up or time.monotonic() > deadline:
                    return done
                time.sleep(2)

        yield submit
    finally:
        for pid in {*below(process.pid), process.pid, *naming(str(folder))} - {os.getpid()}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)


def summary_of(done: Any) -> dict[str, Any]:
    """The JSON that the job printed, among what Ray printed."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    text = done.stdout
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text[text.index("\n{\n") + 1 :])[0]
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_job_from_a_working_directory(submit: Any, device: Any) -> None:
    options = ["tests/data/scale_add/task.toml", "--run-dir", "run", *OPTIONS]
    done = submit(["--working-dir", "."], [sys.executable, "scripts/tune.py", *options], REPOSITORY)
    summary = summary_of(done)
    assert summary["evaluations"] == 2 and summary["general"] is not None


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_job_from_a_wheel(submit: Any, device: Any, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    # Building writes beside the sources.
    source = tmp_path / "source"
    made = shutil.ignore_patterns(".git", ".venv", ".*cache", ".hypothesis", "build", "dist", "runs", "*.egg-info")

    def left_out(folder: str, names: list[str]) -> set[str]:
        # Rooms of ours have such names too: kernels/build.
        return made(folder, names) if Path(folder) == REPOSITORY else set()

    shutil.copytree(REPOSITORY, source, symlinks=True, ignore=left_out)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("tunesmith-*.whl")
    place = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(place), str(wheel)], check=True, capture_output=True)
    script = place / "tunesmith" / "cli" / "tune.py"
    environment = json.dumps({"env_vars": {"PYTHONPATH": str(place)}})
    done = submit(
        ["--runtime-env-json", environment],
        [sys.executable, str(script), TASK, "--run-dir", str(tmp_path / "run"), *OPTIONS],
        tmp_path,
    )
    assert summary_of(done)["evaluations"] == 2
    assert (tmp_path / "run" / "best").is_dir()


def test_the_cluster_file_of_the_documentation_is_valid() -> None:
    """By the schema that `ray up` and `ray submit` hold it against."""
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    text = (REPOSITORY / "docs" / "cluster.yaml").read_text(encoding="utf-8")
    prepared = prepare_config(yaml.safe_load(text) | {"cluster_synced_files": []})
    validate_config(prepared)
    assert any("RAY_AUTH_MODE=token" in command for command in prepared["head_start_ray_commands"])


@pytest.mark.slow
def test_a_run_joins_the_cluster_of_ray_address_and_leaves_it_up(tmp_path: Path, device: Any, ray_cluster: Any) -> None:
    address = ray_cluster.get_runtime_context().gcs_address
    script = str(REPOSITORY / "scripts" / "tune.py")
    run = [sys.executable, script, TASK, "--run-dir", str(tmp_path / "r"), *OPTIONS]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100, env={**os.environ, "RAY_ADDRESS": address})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["evaluations"] == 2
    jobs = [job for job in ray_cluster._private.state.jobs() if "tune.py" in job["Entrypoint"]]
    assert jobs, "the run was a job of this cluster"
    assert ray_cluster.get(ray_cluster.remote(lambda: 42).remote(), timeout=30) == 42


def test_a_cluster_that_is_not_there(tmp_path: Path, here: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    done = here("tune", TASK, "--run-dir", tmp_path / "r", *OPTIONS)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith("tunesmith: ") and "RAY_ADDRESS=127.0.0.1:1" in said


End = Callable[[str, int, int], tuple[subprocess.Popen[str], str, str]]


def entries(folder: Path, kind: str) -> list[Row]:
    try:
        return rows(folder, kind)
    except sqlite3.OperationalError:  # the file or its table is not there yet
        return []


@pytest.fixture
def end(tmp_path: Path, environment: dict[str, str], device: Any) -> Iterator[End]:
    """Starts a run in a process group of its own, as a shell does; sends a signal once it has `least` entries of
    `kind`, or processes of that name: SIGINT to the group, as a terminal does, others to the process. Gives the process
    and its output."""
    started = []

    def run(kind: str, least: int, number: int) -> tuple[subprocess.Popen[str], str, str]:
        options = ["--evaluations", "4", "--rounds", "1", "--seed", "1", "--workers", "1", "--run-dir"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tunesmith.cli.main", "tune", TASK, *options, str(tmp_path / "run")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment,
        )
        started.append(process)
        deadline = time.monotonic() + 60
        while len(entries(tmp_path / "run", kind)) + len(naming(f"/{kind}") & below(process.pid)) < least:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        family = below(process.pid)
        (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=60)
        # On a busy machine they take some seconds to end.
        deadline = time.monotonic() + 20
        while (left := alive(family)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, "processes outlive the run that started them"
        return process, out, err

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def check_resumed(folder: Path, command: Any) -> None:
    """The run goes on after its entries, and measures nothing twice."""
    known = rows(folder)
    done = command("resume", folder, "--json")
    assert done.returncode == 0, done.stderr
    summary, events = json.loads(done.stdout), rows(folder)
    assert [event.sequence for event in events[: len(known)]] == [event.sequence for event in known]
    keys = [event.data["key"] for event in events if event.kind == "evaluation"]
    assert summary["evaluations"] == len(keys) == len(set(keys)) <= 4
    assert summary["general"] is not None and "baseline" in summary["sentence"]
    assert [event.kind for event in events].count("baseline") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "least"), [("evaluation", 2), ("asked", 1), ("comparison", 1), ("run", 1)])
def test_killed_and_resumed(end: End, command: Any, tmp_path: Path, kind: str, least: int) -> None:
    end(kind, least, signal.SIGKILL)
    check_resumed(tmp_path / "run", command)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        # While Ray starts, and while the device's roofs are measured.
        ("gcs_server", signal.SIGTERM),
        ("baseline", signal.SIGINT),
        *(
            pytest.param(kind, signal.SIGINT, marks=pytest.mark.slow)
            for kind in ("gcs_server", "evaluation", "comparison", "run")
        ),
        # A job's end, and a lost terminal, are interruptions too.
        *(pytest.param("evaluation", number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_interrupted_and_resumed(end: End, command: Any, tmp_path: Path, request: Any, kind: str, number: int) -> None:
    process, out, err = end(kind, 1, number)
    assert process.returncode == 130
    assert f"tunesmith resume {tmp_path / 'run'}" in err.splitlines()[-1]
    assert "Traceback" not in err and "Exception" not in err and out == ""
    if request.node.get_closest_marker("slow") and kind != "gcs_server":
        check_resumed(tmp_path / "run", command)


def processes() -> dict[int, tuple[bytes, list[str]]]:
    """By number: the command line, and what /proc/PID/stat has after the name, which is state, parent, ..."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            found[int(entry.name)] = (entry / "cmdline").read_bytes(), stat
    return found


def below(pid: int) -> set[int]:
    """The processes started by `pid`, directly or not."""
    parents = {child: int(stat[1]) for child, (_, stat) in processes().items()}
    found, fresh = set[int](), {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def naming(text: str) -> set[int]:
    """Processes with `text` in their command line, whoever is their parent by now."""
    return {pid for pid, (command, _) in processes().items() if text.encode() in command}


def alive(pids: set[int]) -> set[int]:
    """Those that have not ended. Ray's own two agents notice the death of their node only a minute later."""
    left = set()
    for pid, (command, (state, *_)) in processes().items():
        is_agent = b"Agent" in command.split(b"\0")[0]
        if pid in pids and state != "Z" and not is_agent:
            left.add(pid)
    return left


def test_a_cluster_has_a_token_also_in_a_program_that_imported_ray_before(environment: dict[str, str]) -> None:
    own = {name: value for name, value in environment.items() if not name.startswith("RAY_")}
    begin = "import os\nfrom tunesmith.actors.ray_cluster import cluster\n"
    told = 'print(os.environ.get("RAY_AUTH_MODE"))'
    # In other programs Ray reads it as it is imported: whole runs start a cluster with it.
    codes = (f"import ray\n{begin}with cluster(): {told}", f"{begin}{told}")
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for process in [subprocess.Popen([sys.executable, "-c", code], env=own, **pipes) for code in codes]:
        out, err = process.communicate(timeout=120)
        assert out.split() == ["token"], err[-2000:]
