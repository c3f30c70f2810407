from __future__ import annotations

from pathlib import Path

import pytest

from tests.tooling.packaging.projects import write_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path / "weather-mcp")
