"""The bundle holds what the server needs, and nothing that is private or made by machine."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from defserve.tooling.packaging.package import write_bundle

MANIFEST = {"manifest_version": "0.4", "name": "weather-mcp"}


def test_a_bundle_holds_the_project_and_its_manifest(project: Path, tmp_path: Path) -> None:
    for name in (".env", ".git/config", "dist/x.whl", "src/weather_mcp/__pycache__/a.pyc", "tests/test_a.py", "id.key"):
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    (project / ".mcpbignore").write_text("# not for users\ntests/\nsrc/*/drafts\n")
    (project / "src" / "weather_mcp" / "drafts").mkdir()
    (project / "src" / "weather_mcp" / "drafts" / "d.py").touch()
    names = write_bundle(tmp_path / "w.mcpb", project, MANIFEST)
    assert names == ["manifest.json", "README.md", "pyproject.toml", "src/weather_mcp/__init__.py"]
    with zipfile.ZipFile(tmp_path / "w.mcpb") as archive:
        assert archive.namelist() == names
        assert archive.testzip() is None
        assert json.loads(archive.read("manifest.json")) == MANIFEST


def test_the_same_project_gives_the_same_bytes(project: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "a.mcpb", project, MANIFEST)
    os.utime(project / "README.md", (0, 0))
    write_bundle(tmp_path / "b.mcpb", project, MANIFEST)
    assert (tmp_path / "a.mcpb").read_bytes() == (tmp_path / "b.mcpb").read_bytes()


@pytest.mark.skipif(os.name != "posix", reason="links need rights there")
def test_a_link_does_not_bring_strange_files_in(project: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key.txt").write_text("secret")
    (project / "link.txt").symlink_to(tmp_path / "private" / "key.txt")
    (project / "linked").symlink_to(tmp_path / "private")
    assert not [name for name in write_bundle(tmp_path / "w.mcpb", project, MANIFEST) if "link" in name]
