from __future__ import annotations

# Loaded before pytester remembers which modules there are: loaded a second time they would have classes of two kinds.
import httptools  # noqa: F401
import pytest

import defserve.web  # noqa: F401


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test suite of its own that knows no plugin but ours."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\naddopts = -p defserve.testing.plugin --strict-markers\nfilterwarnings = error\n")
    return pytester
