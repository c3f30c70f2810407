from __future__ import annotations

import os
import sys

import pytest

# A suite that runs in this process takes away again what it imported: it would import all of these each time.
import defserve.testing.client  # noqa: F401
import tests.testing.calculator
import tests.testing.toy  # noqa: F401


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A test suite of its own that knows no plugin but ours."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # For suites that run in a process of their own.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    pytester.makeini("[pytest]\naddopts = -p defserve.testing.plugin --strict-markers\nfilterwarnings = error\n")
    return pytester
