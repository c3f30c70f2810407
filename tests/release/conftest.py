"""What was built, and an index that has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .artifacts import Artifacts
from .index import served, wheels


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def index(artifacts: Artifacts) -> Iterator[str]:
    with served(artifacts.folder, wheels(artifacts)) as address:
        yield address
