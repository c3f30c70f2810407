"""The wheel and the sdist hold what users need, say what they are, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from defserve.base.version import VERSION

from .artifacts import ROOT, Artifacts

pytestmark = pytest.mark.release

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# What the sdist has at its top. Tests stay in the repository.
TOP = {
    "framework",
    "templates",
    "cookiecutter",
    "examples",
    "docs",
    "pyproject.toml",
    "PKG-INFO",
    "LICENSE",
    "llms.txt",
}


def test_the_same_sources_make_the_same_bytes(artifacts: Artifacts, tmp_path: Path) -> None:
    """In another folder, from a copy with other times and rights, in another time zone and language."""
    copy = tmp_path / "elsewhere"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
        target.chmod(0o700 if (ROOT / name).stat().st_mode & 0o100 else 0o600)
    environment = {**os.environ, "TZ": "Pacific/Chatham", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "7"}
    again = Artifacts(tmp_path / "dist", copy, environment)
    assert again.wheel.name == artifacts.wheel.name and again.wheel.read_bytes() == artifacts.wheel.read_bytes()
    assert again.sdist.name == artifacts.sdist.name and again.sdist.read_bytes() == artifacts.sdist.read_bytes()


def test_the_bill_of_materials_names_what_the_package_needs(tmp_path: Path) -> None:
    done = subprocess.run(["make", "sbom"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    bill = json.loads((ROOT / "build" / "sbom.json").read_text("utf-8"))
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "defserve")
    listed = {canonicalize_name(each["name"]) for each in bill["components"]}
    extras = PROJECT["optional-dependencies"]
    needs = [*PROJECT["dependencies"], *(each for name, extra in extras.items() if name != "all" for each in extra)]
    assert {canonicalize_name(Requirement(each).name) for each in needs} <= listed
    # What only the tests need is not part of it.
    assert not listed & {"pytest", "hypothesis", "pyright", "ruff", "mcp"}
    assert all(each["externalReferences"][0]["hashes"] for each in bill["components"])


def test_an_index_would_take_both(artifacts: Artifacts) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", str(artifacts.wheel), str(artifacts.sdist)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def test_the_metadata_is_that_of_the_project(artifacts: Artifacts) -> None:
    found = artifacts.metadata()
    assert (found["Name"], found["Version"]) == ("defserve", VERSION)
    assert found["Summary"] == PROJECT["description"]
    assert found["Requires-Python"] == PROJECT["requires-python"]
    assert found["License-Expression"] == "MIT"
    assert found.get_all("Classifier") == PROJECT["classifiers"]
    assert set(found.get_all("Provides-Extra") or []) == set(PROJECT["optional-dependencies"])


def test_the_long_description_is_the_readme(artifacts: Artifacts) -> None:
    found = artifacts.metadata()
    assert found["Description-Content-Type"] == "text/markdown"
    assert str(found.get_payload()).strip() == (ROOT / "README.md").read_text("utf-8").strip()


def test_the_licence_comes_along(artifacts: Artifacts) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    assert artifacts.metadata().get_all("License-File") == ["LICENSE"]
    assert artifacts.in_sdist()["LICENSE"] == licence
    assert artifacts.in_wheel()[f"defserve-{VERSION}.dist-info/licenses/LICENSE"] == licence


def test_type_checkers_trust_it(artifacts: Artifacts) -> None:
    assert "defserve/py.typed" in artifacts.in_wheel()


def test_the_wheel_is_the_package_and_nothing_else(artifacts: Artifacts) -> None:
    package = ROOT / "framework" / "defserve"
    sources = {
        f"defserve/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    inside = {name for name in artifacts.in_wheel() if not name.startswith("defserve/_data/")}
    assert inside == sources | {name for name in inside if name.startswith(f"defserve-{VERSION}.dist-info/")}


def test_the_entry_points_lead_to_something(artifacts: Artifacts) -> None:
    parser = ConfigParser()
    parser.read_string(artifacts.in_wheel()[f"defserve-{VERSION}.dist-info/entry_points.txt"].decode())
    found = {group: dict(parser[group]) for group in parser.sections()}
    assert found == {
        "console_scripts": {"defserve": "defserve.__main__:main"},
        "pytest11": {"defserve": "defserve.testing.plugin"},
    }
    targets = [value.partition(":")[0] for group in found.values() for value in group.values()]
    assert all(find_spec(module) for module in targets)


def test_the_sdist_has_no_tests_and_nothing_hidden(artifacts: Artifacts) -> None:
    inside = artifacts.in_sdist()
    top = {name.partition("/")[0] for name in inside}
    assert {name for name in top if not name.endswith(".md")} <= TOP | {".gitignore"}
    assert not [name for name in inside if "__pycache__" in name or name.endswith((".pyc", ".key", ".db"))]


def test_nothing_tells_where_it_was_built(artifacts: Artifacts) -> None:
    here = re.compile("|".join(re.escape(str(path)) for path in (ROOT, sys.prefix, artifacts.folder)).encode())
    everything = {**artifacts.in_wheel(), **artifacts.in_sdist()}
    assert [name for name, body in everything.items() if here.search(body)] == []


def test_the_sdist_builds_the_same_wheel_as_the_repository(artifacts: Artifacts, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.read_bytes() == artifacts.wheel.read_bytes()
