"""scripts/tune.py as a cluster's job runs it, and runs that join a cluster that is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
TASK = REPOSITORY / "tests" / "data" / "scale_add" / "task.toml"
OPTIONS = ["--evaluations", "2", "--rounds", "1", "--json"]


@pytest.mark.slow
def test_a_run_joins_the_cluster_of_ray_address_and_leaves_it_running(
    tmp_path: Path, device: Any, ray_cluster: Any
) -> None:
    address = ray_cluster.get_runtime_context().gcs_address
    script = str(REPOSITORY / "scripts" / "tune.py")
    run = [sys.executable, script, str(TASK), "--run-dir", str(tmp_path / "r"), *OPTIONS]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100, env={**os.environ, "RAY_ADDRESS": address})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["evaluations"] == 2
    jobs = [job for job in ray_cluster._private.state.jobs() if "tune.py" in job["Entrypoint"]]
    assert jobs, "the run was a job of this cluster"
    assert ray_cluster.get(ray_cluster.remote(lambda: 42).remote(), timeout=30) == 42


def test_a_cluster_that_is_not_there(tmp_path: Path, environment: dict[str, str], device: Any) -> None:
    run = [sys.executable, "-m", "tunesmith.cli.main", "tune", str(TASK), "--run-dir", str(tmp_path / "r"), *OPTIONS]
    done = subprocess.run(
        run, capture_output=True, text=True, timeout=115, env=environment | {"RAY_ADDRESS": "127.0.0.1:1"}
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    said = done.stderr.splitlines()[-1]
    assert said.startswith("tunesmith: ") and "RAY_ADDRESS=127.0.0.1:1" in said
