"""Whatever builder there is builds; where there is none, it is said what to install."""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from defserve.errors import UsageError
from defserve.tooling.packaging import building
from defserve.tooling.packaging.building import build_command
from defserve.tooling.packaging.project import read_project
from defserve.tooling.packaging.wheel import read_wheel


def only(monkeypatch: pytest.MonkeyPatch, modules: Iterable[str] = (), uv: str | None = None) -> None:
    monkeypatch.setattr(building, "_has", lambda module: module in modules)  # pyright: ignore[reportUnknownLambdaType]
    monkeypatch.setattr(shutil, "which", lambda name: uv)


@pytest.mark.parametrize(
    ("modules", "uv", "command"),
    [
        (["build", "hatchling"], None, [sys.executable, "-m", "build", "--outdir", "O", "--no-isolation", "P"]),
        (["build"], None, [sys.executable, "-m", "build", "--outdir", "O", "P"]),
        (["hatchling"], None, [sys.executable, "-m", "hatchling", "build", "-d", "O"]),
        ([], "/bin/uv", ["/bin/uv", "build", "--out-dir", "O", "P"]),
    ],
)
def test_the_first_builder_there_is_builds(
    project: Path, monkeypatch: pytest.MonkeyPatch, modules: list[str], uv: str | None, command: list[str]
) -> None:
    only(monkeypatch, modules, uv)
    expected = [str(project) if word == "P" else word for word in command]
    assert build_command(read_project(project), Path("O")) == expected


def test_without_a_builder_it_is_said_what_to_install(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    with pytest.raises(UsageError, match=r'install "defserve\[dev\]"'):
        build_command(read_project(project), Path("O"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("", "no \\[project\\] with a name"), ("[project", "pyproject.toml is broken"), (None, "there is no project")],
)
def test_a_folder_without_a_project_is_refused(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        read_project(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"), [("Name", "../../x"), ("Name", ""), ("Version", "1/../../x"), ("Version", "1\tb")]
)
def test_a_wheel_whose_name_or_version_cannot_be_part_of_a_file_name_is_refused(tmp_path: Path, field: str, value: str):
    metadata = {"Name": "weather", "Version": "1.0", field: value}
    path = tmp_path / "weather-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        text = "".join(f"{name}: {each}\n" for name, each in metadata.items())
        archive.writestr("weather-1.0.dist-info/METADATA", text)
    with pytest.raises(UsageError, match=f"gives itself the {field.lower()}"):
        read_wheel(path)
