from __future__ import annotations

import pytest

from tests.protocols.mcpl.channels.connectors import Discord


@pytest.fixture
def discord() -> Discord:
    return Discord()
