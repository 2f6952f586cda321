"""The simulated device on which most runs here are."""

from typing import Any

import pytest
from model_runs import ModelPool
from simulated_pool import simulate_device


@pytest.fixture
def simulation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, device: Any) -> list[dict[str, Any]]:
    """Every run is on a simulated device, that of the module's POOL if it has one; gives the list of measured
    configurations."""
    return simulate_device(monkeypatch, getattr(request.module, "POOL", ModelPool))
