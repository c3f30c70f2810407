"""What every test shares: the requirement ledger, and how hard Hypothesis tries."""

from __future__ import annotations

import pytest
from hypothesis import settings

pytest_plugins = ["tests.conformance.plugin", "pytester"]

# A slow machine is not a failing test: time is pytest-timeout's business.
settings.register_profile("default", deadline=None)
settings.register_profile("long", deadline=None, max_examples=20_000)
settings.load_profile("default")


@pytest.fixture
def anyio_backend() -> str:
    """Servers run on asyncio."""
    return "asyncio"
