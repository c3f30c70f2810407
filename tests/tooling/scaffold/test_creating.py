"""A project is the same, to the byte, whether `defserve new` or the `cookiecutter` command makes it."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from cookiecutter.exceptions import FailedHookException
from cookiecutter.main import cookiecutter

from defserve.base.version import VERSION
from defserve.errors import UsageError
from defserve.tooling.project_template import create_project, find_template_folder, load_template_questions
from tests.effort import cpu_within
from tests.tooling.scaffold.packages import ROOT, run

BODIES = list(load_template_questions().choices("body"))
ANSWERS = {
    "project_name": "Weather of Today",
    "author": "O'Brien & Søn",
    "github_user": "Ada-L",
    "licence": "Apache-2.0",
    "description": "The weather, as it's said to be: <mild> & 100% dry",
}


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """Cookiecutter keeps what it was told; not in the home of whoever runs the tests."""
    path = tmp_path / "settings.yml"
    path.write_text(f"replay_dir: {tmp_path / 'replay'}\ncookiecutters_dir: {tmp_path / 'cookiecutters'}\n")
    return str(path)


@pytest.mark.parametrize("body", BODIES)
def test_each_template_is_rendered_as_cookiecutter_does(tmp_path: Path, settings: str, body: str):
    ours = create_project({**ANSWERS, "body": body}, tmp_path / "ours")
    theirs = cookiecutter(
        str(find_template_folder() / "cookiecutter"),
        no_input=True,
        extra_context={**ANSWERS, "body": body},
        output_dir=str(tmp_path / "theirs"),
        config_file=settings,
    )
    assert files(ours.folder) == files(Path(theirs))
    assert sorted(ours.files) == sorted(files(ours.folder))


@pytest.mark.slow
def test_the_cookiecutter_command_gives_the_default_project(tmp_path: Path, settings: str):
    # From the root of the repository, where a folder is called like the package.
    run(
        sys.executable, "-m", "cookiecutter", "./cookiecutter", "--no-input", "-o", tmp_path / "theirs",
        cwd=ROOT, env={**os.environ, "COOKIECUTTER_CONFIG": settings},
    )  # fmt: skip
    assert files(create_project({}, tmp_path / "ours").folder) == files(tmp_path / "theirs" / "my-server")


@pytest.mark.parametrize("licence", load_template_questions().choices("licence"))
def test_every_licence_is_there(tmp_path: Path, settings: str, licence: str):
    project = create_project({"licence": licence}, tmp_path)
    assert tomllib.loads((project.folder / "pyproject.toml").read_text())["project"]["license"] == licence
    text = (project.folder / "LICENSE").read_text()
    assert licence.partition("-")[0] in text and "{{" not in text


@pytest.mark.parametrize(
    "wrong", [{"project_slug": "9x"}, {"package_name": "json"}, {"author": 'x"y'}, {"description": "x" * 101}]
)
def test_the_hook_refuses_what_we_refuse(
    tmp_path: Path, settings: str, wrong: dict[str, str], capfd: pytest.CaptureFixture[str]
):
    with pytest.raises(UsageError) as refused:
        create_project(wrong, tmp_path)
    with pytest.raises(FailedHookException):
        cookiecutter(
            str(find_template_folder() / "cookiecutter"),
            no_input=True,
            extra_context=wrong,
            output_dir=str(tmp_path),
            config_file=settings,
        )
    assert refused.value.fix in capfd.readouterr().err
    assert not list(tmp_path.glob("*/pyproject.toml"))


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path):
    (tmp_path / "my-server").mkdir()
    with pytest.raises(UsageError, match="my-server already exists"):
        create_project({}, tmp_path)
    assert list((tmp_path / "my-server").iterdir()) == []


def test_a_project_is_made_in_less_than_a_second(tmp_path: Path):
    tries = iter(range(9))
    assert cpu_within(1, lambda: create_project({"body": "tools"}, tmp_path / str(next(tries))))


def test_the_files_that_registries_read_agree(tmp_path: Path):
    folder = create_project(ANSWERS, tmp_path).folder
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    card, manifest, agents = (json.loads((folder / name).read_text("utf-8")) for name in (
        "server.json", "manifest.json", ".mcp.json",
    ))  # fmt: skip
    assert card["name"] == "io.github.Ada-L/weather-of-today"
    assert f"<!-- mcp-name: {card['name']} -->" in (folder / "README.md").read_text("utf-8")
    assert f'"{card["name"]}"' in (folder / "Dockerfile").read_text("utf-8")
    assert project["scripts"] == {"weather-of-today": "weather_of_today.server:server.main"}
    assert project["entry-points"]["defserve.servers"] == {"weather-of-today": "weather_of_today.server:server"}
    assert manifest["author"]["name"] == project["authors"][0]["name"] == ANSWERS["author"]
    assert manifest["description"] == card["description"] == project["description"] == ANSWERS["description"]
    assert list(agents["mcpServers"]) == ["weather-of-today"]
    assert len((folder / "AGENTS.md").read_text("utf-8").splitlines()) <= 60


def test_nothing_of_the_template_is_left_in_a_project(tmp_path: Path):
    for path, text in files(create_project({}, tmp_path).folder).items():
        if not path.startswith(".github/"):
            assert b"cookiecutter" not in text and b"{{" not in text, path


def test_a_project_asks_for_this_version():
    first, second = VERSION.split(".")[:2]
    wanted = f">={first}.{second},<{first}.{int(second) + 1}"
    assert {
        rest.partition(">")[1] + rest.partition(">")[2]
        for rest in load_template_questions().settings["_requirements"].values()
    } == {wanted}


def test_the_scaffold_folder_is_no_package():
    assert not (ROOT / "cookiecutter" / "__init__.py").exists()
