"""Who a server says it is."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

from defserve.protocols.mcp.lifecycle import ServerDescription


def identity(module: str | None) -> ServerDescription:
    return ServerDescription("s", None, distribution=module)


def test_a_server_in_a_package_has_its_version():
    assert identity("defserve.cli").version == metadata.version("defserve")


@pytest.mark.slow
def test_a_package_may_be_called_otherwise_than_its_distribution():
    assert identity("_pytest.config").version == metadata.version("pytest")


@pytest.mark.parametrize("folder", ["Our_Shop-2.5.dist-info", "our.shop-2.5.dist-info", "our_shop.egg-info"])
def test_a_package_that_is_installed_where_it_is_written_has_its_version(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / ("PKG-INFO" if folder.endswith("egg-info") else "METADATA")).write_text(
        "Metadata-Version: 2.1\nName: our-shop\nVersion: 2.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert identity("our_shop.server").version == "2.5"


def test_a_package_in_an_archive_has_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with ZipFile(tmp_path / "shop.zip", "w") as archive:
        archive.writestr("our_shop-2.5.dist-info/METADATA", "Metadata-Version: 2.1\nName: our-shop\nVersion: 2.5\n")
    monkeypatch.syspath_prepend(tmp_path / "shop.zip")
    assert identity("our_shop").version == "2.5"


@pytest.mark.parametrize("module", [None, "__main__", "tests.protocols.mcp.test_identity", "nowhere"])
def test_a_loose_file_has_none_and_nobody_searches_for_it(module: str | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(metadata, "packages_distributions", lambda: pytest.fail("all that is installed was read"))
    monkeypatch.setattr(metadata, "distribution", lambda _: pytest.fail("importlib.metadata was used, which is slow"))
    assert identity(module).version == "0.0.0"
