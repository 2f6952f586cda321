"""pytest explains the contract's assertions as it does those in test modules."""

import pytest

pytest.register_assert_rewrite("contract")
