"""A compiler for all tests of rewrites."""

from __future__ import annotations

import pytest
from rewrite_cases import H200

from tunesmith.kernels.backends import Compiler, open_compiler


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    """One for all, which keeps the headers that it has compiled."""
    pytest.importorskip("cuda.bindings")
    return open_compiler(H200, 0)
