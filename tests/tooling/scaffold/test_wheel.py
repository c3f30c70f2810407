"""The templates are in the wheel; a project made from it installs a command that any client can run."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.tooling.scaffold.packages import ROOT, Environment, build_wheel, drive


@pytest.mark.e2e
@pytest.mark.anyio
@pytest.mark.req("GGEN-P4-3")
async def test_from_the_wheel_to_a_command_that_the_official_client_drives(tmp_path: Path):
    ours = build_wheel(ROOT, tmp_path)
    in_it = zipfile.ZipFile(ours).namelist()
    assert "defserve/_data/cookiecutter/cookiecutter.json" in in_it
    assert "defserve/_data/templates/minimal/server.py" in in_it
    assert not [name for name in in_it if "__pycache__" in name]

    environment = Environment(tmp_path / "env", borrows=True)
    environment.install("--no-deps", ours)
    told = environment.run("defserve", "new", "fresh-mcp", "--yes", cwd=tmp_path)
    assert f"pip install {ours}\n" in told  # which is not on an index, as far as the command can know
    theirs = build_wheel(tmp_path / "fresh-mcp", tmp_path)
    assert "fresh_mcp/py.typed" in zipfile.ZipFile(theirs).namelist()
    environment.install("--no-deps", theirs)
    assert environment.run("fresh-mcp", "--version").strip() == "fresh-mcp 0.1.0"
    assert await drive(environment.bin / "fresh-mcp", "greet", {"name": "Ada"}) == ["Hello, Ada!"] * 2
