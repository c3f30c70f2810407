"""The Dockerfile of a project, without Docker: its instructions fit the project."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from defserve.tooling.project_template import create_project
from tests.tooling.scaffold.dockerfiles import instructions, is_sent, the


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_project({"project_name": "Weather Today"}, tmp_path_factory.mktemp("project")).folder


def test_what_is_copied_is_there_and_not_ignored(project: Path):
    copied = [each.words[:-1] for each in instructions(project) if each.name == "COPY"]
    names = [name for words in copied for name in words]
    assert names == ["pyproject.toml", "README.md", "LICENSE", "src"]
    for name in names:
        assert (project / name).exists() and is_sent(project, name), name


def test_what_is_secret_or_large_is_not_sent(project: Path):
    assert not any(is_sent(project, name) for name in (".env", ".git", ".venv", "dist", "tests"))


def test_it_starts_the_console_script(project: Path):
    scripts = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert the("ENTRYPOINT", project).words == list(scripts) == ["weather-today"]
    assert not [each for each in instructions(project) if each.name == "CMD"]


def test_it_runs_as_a_user_that_it_has_made(project: Path):
    user = the("USER", project).text
    assert user != "root" and f"useradd --create-home {user}" in the("RUN", project).text
    names = [each.name for each in instructions(project)]
    assert names.index("RUN") < names.index("USER") < names.index("ENTRYPOINT")


def test_its_python_is_one_that_the_project_takes(project: Path):
    image, version = the("FROM", project).text.split(":")
    assert image == "python" and "3.11" <= version.removesuffix("-slim") <= "3.14"


def test_the_health_check_asks_the_port_that_it_exposes(project: Path):
    assert f", {the('EXPOSE', project).text}," in the("HEALTHCHECK", project).text
