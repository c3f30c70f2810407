"""What the package says of itself in several files has to agree, or no registry takes it."""

import json
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def described(file: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / file).read_text(encoding="utf-8"))
    return found


def test_every_file_has_the_same_version() -> None:
    card = described("server.json")
    versions = [described("manifest.json")["version"], card["version"], *(each["version"] for each in card["packages"])]
    assert set(versions) == {project()["version"]}


def test_every_file_names_the_same_distribution() -> None:
    name = project()["name"]
    assert name in project()["scripts"]
    assert described("manifest.json")["name"] == name
    assert [each["identifier"] for each in described("server.json")["packages"]] == [name]


def test_the_readme_has_the_marker_the_registry_looks_for() -> None:
    assert f"<!-- mcp-name: {described('server.json')['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")
