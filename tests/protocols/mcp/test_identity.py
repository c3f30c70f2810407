"""Who a server says it is."""

from __future__ import annotations

from importlib import metadata

import pytest

from defserve.protocols.mcp.lifecycle import ServerDescription


def identity(module: str | None) -> ServerDescription:
    return ServerDescription("s", None, distribution=module)


def test_a_server_in_a_package_has_its_version():
    assert identity("defserve.cli").version == metadata.version("defserve")


@pytest.mark.slow
def test_a_package_may_be_called_otherwise_than_its_distribution():
    assert identity("_pytest.config").version == metadata.version("pytest")


@pytest.mark.parametrize("module", [None, "__main__", "tests.protocols.mcp.test_identity", "nowhere"])
def test_a_loose_file_has_none_and_nobody_searches_for_it(module: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metadata, "packages_distributions", lambda: pytest.fail("all that is installed was read"))
    assert identity(module).version == "0.0.0"
