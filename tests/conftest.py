"""What the tests of several rooms share: the test tasks, a device, one Ray cluster, one finished run."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

DATA = Path(__file__).resolve().parent / "data"
COMMAND = [sys.executable, "-m", "tunesmith.cli.main"]

# What tests find is nothing to tell the user of this machine; processes that tests start follow it.
os.environ["TUNESMITH_WISDOM"] = "off"

# Ray gives its workers a niceness of 15. Beside tests that compute, and whatever else a machine does, a lane or a
# compile worker would wait for most of its deadline.
os.environ.setdefault("RAY_worker_niceness", "0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell starts in the background ignores interrupts, and so would all that these tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start the program dozens of times, in several processes each: those that keep no bytecode compile it every time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# On a busy machine any example may take longer than Hypothesis's 200 ms.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# Importing and collecting make a million objects that stay: looking for garbage among them again and again takes longer
# than the garbage is worth, here and in the tests after it.
gc.disable()


def pytest_collection_finish() -> None:
    # Hypothesis parses every module of ours for constants that it then draws now and then: 3.4 s in each process of a
    # fresh clone, and the examples of a fixed seed would change with any line of the sources. It has no setting for it.
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    if providers is not None and hasattr(providers, "_get_local_constants"):
        vars(providers)["_get_local_constants"] = vars(providers)["Constants"]
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # Groups of tests that run side by side have a folder each. Ray's stays where it is, as paths of sockets must be
    # short.
    os.environ.setdefault("RAY_TMPDIR", tempfile.gettempdir())
    own = Path(tempfile.gettempdir(), f"tunesmith-tests-{os.getuid()}-{worker}")
    own.mkdir(mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
# Devices' locks, too, are those of this group: what it holds, or says that it does, is no matter of another's.
os.environ["TUNESMITH_LOCK_DIR"] = tempfile.gettempdir()


@dataclass(frozen=True)
class FinishedRun:
    """What a command line run left: its folder, its streams and exit code."""

    folder: Path
    stdout: str
    stderr: str
    code: int

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture(scope="session")
def device() -> Any:
    """An OpenCL CPU."""
    from tunesmith.hw.probe import probe

    for found in probe().devices:
        if found.backend == "opencl" and found.limits.kind == "cpu":
            return found
    pytest.skip("there is no OpenCL CPU here")


@pytest.fixture(scope="session")
def cuda_include() -> Path:
    """The folder of CUDA's headers: a toolkit's, or that of NVIDIA's wheels."""
    roots = [Path(root) / "nvidia" for root in sys.path] + [Path("/usr/local/cuda"), Path("/usr/local")]
    for root in roots:
        for header in root.glob("*/include/cuda_occupancy.h"):
            return header.parent
    pytest.skip("CUDA's headers are not here")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster of two processors and three pretended GPUs in this process; runs started here join it."""
    import ray

    ray.init(
        address="local", num_cpus=2, num_gpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield ray
    ray.shutdown()


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """For commands in processes of their own: no cluster to join but their own."""
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}


@pytest.fixture(scope="session")
def command(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in a process of its own."""

    def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=280, cwd=cwd, env=environment
        )

    return run


@pytest.fixture
def here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in this process, where a process of its own is not the point: starting one takes longer
    than most commands do."""
    from tunesmith.cli.main import main

    def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        given = [str(argument) for argument in arguments]
        with monkeypatch.context() as there, pytest.raises(SystemExit) as ended:
            if cwd is not None:
                there.chdir(cwd)
            main(given)
        out, err = capsys.readouterr()
        code = ended.value.code
        return subprocess.CompletedProcess(given, code if isinstance(code, int) else 1, out, err)

    return run


@pytest.fixture
def without_sanitizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """For verdicts of which the sanitizer is not the point: Oclgrind interprets a hundred launches, in five seconds."""
    monkeypatch.setattr("tunesmith.kernels.check.sanitizer.find_tool", lambda name: None)


@pytest.fixture(scope="session")
def finished_run(device: Any, command: Any, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """`tunesmith tune scale_add --json` from start to end: one round, three evaluations, one finalist."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    task = DATA / "scale_add" / "task.toml"
    few = ("--evaluations", 3, "--rounds", 1, "--finalists", 1, "--check-time", 1)
    done = command("tune", task, *few, "--seed", 7, "--run-dir", folder, "--json")
    return FinishedRun(folder, done.stdout, done.stderr, done.returncode)


@pytest.fixture(scope="session")
def ended_once(device: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from simulated_pool import ended_run

    return ended_run(tmp_path_factory.mktemp("ended") / "run").folder


@pytest.fixture
def ended(ended_once: Path, tmp_path: Path) -> Path:
    """A run on a simulated device that ended after three evaluations, in one round."""
    return shutil.copytree(ended_once, tmp_path / "run")


@pytest.hookimpl(tryfirst=True)  # xdist looks for groups in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests that need an NVIDIA GPU where there is none, with the reason. Where tests are spread over processes,
    tests that share a Ray cluster, a finished run or a library that is slow to import stay together, in groups, and so
    do tests that use the GPU, of which there is one. No group may take more than a third of the time, so that the last
    one does not run alone: hence the other tests of actors and of the command line are grouped by file, and so are
    those of rewrites, which compute while others wait, and ask again for what rules have made."""
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.xdist_group("gpu"))
        elif {"ray_cluster", "two_nodes"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("cluster"))
        elif "finished_run" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("finished run"))
        elif item.path.parent.name in ("actors", "cli", "rewrite"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif item.path.parent.name == "models":
            # LangChain's chat models take two seconds to import.
            item.add_marker(pytest.mark.xdist_group("models"))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (reason := no_cuda_device()) is not None:
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))


def no_cuda_device() -> str | None:
    """Why tests that need an NVIDIA GPU cannot run here, or None."""
    from tunesmith.hw.probe import probe_cuda

    inventory = probe_cuda()
    if inventory.devices:
        return None
    return "no CUDA device: " + " ".join(inventory.notes)
