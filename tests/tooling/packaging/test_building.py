"""Whatever builder there is builds; where there is none, it is said what to install."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import UsageError
from defserve.tooling.client_settings import format_install_command
from defserve.tooling.packaging import package
from defserve.tooling.packaging.package import (
    build,
    build_command,
    find_built,
    find_unmet_requirements,
    parse_distribution_name,
)
from defserve.tooling.packaging.project_documents import normalize_distribution_name, read_project, read_wheel
from tests.rows import for_each_row


def only(monkeypatch: pytest.MonkeyPatch, modules: Iterable[str] = (), uv: str | None = None) -> None:
    monkeypatch.setattr(package, "_has", lambda module: module in modules)  # pyright: ignore[reportUnknownLambdaType]
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


@for_each_row(
    "log, names",
    [
        ("ERROR Unmet dependencies (checked against python):\n    wheel\n        wanted: any\n", ["wheel"]),
        (
            "ERROR Unmet dependencies (checked against x):\n    wheel\n        found: not installed\n    cython>=3\n",
            ["wheel", "cython>=3"],
        ),
        ("ERROR Missing dependencies:\n\twheel\nmore\n  other", ["wheel"]),
        ("ERROR Unmet dependencies", []),
        ("ERROR no README", []),
    ],
)
def test_what_a_backend_lacks_is_read_from_the_log_of_build(log: str, names: list[str]) -> None:
    assert find_unmet_requirements(log) == names


class Builds:
    """Runs builds of which those in this environment lack a package, and those in one of their own give `isolated`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, isolated: int) -> None:
        self.isolated, self.commands = isolated, list[list[str]]()
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append([*command])
        out = Path(command[command.index("--outdir") + 1])
        if "--no-isolation" in command:
            (out / "weather-mcp-1.2.0.tar.gz").touch()
            return subprocess.CompletedProcess(command, 1, "", "ERROR Unmet dependencies:\n    wheel\n")
        for name in ("weather_mcp-1.2.0-py3-none-any.whl", "weather_mcp-1.2.0.tar.gz") if not self.isolated else ():
            (out / name).touch()
        return subprocess.CompletedProcess(command, self.isolated, "", "no network" if self.isolated else "")


def test_a_backend_that_lacks_something_builds_in_an_environment_of_its_own(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, ["build", "hatchling"])
    builds = Builds(monkeypatch, isolated=0)
    wheel, _ = build(read_project(project), tmp_path / "out")
    assert wheel.name == "weather_mcp-1.2.0-py3-none-any.whl"
    assert ["--no-isolation" in command for command in builds.commands] == [True, False]


def test_where_that_fails_too_it_is_said_what_to_install(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, ["build", "hatchling"])
    Builds(monkeypatch, isolated=1)
    with pytest.raises(UsageError, match="no network") as refused:
        build(read_project(project), tmp_path / "out")
    assert refused.value.fix == format_install_command("wheel")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no \\[project\\] with a name"),
        ("[project", "pyproject.toml is broken"),
        ("project = 3", "no \\[project\\] with a name"),
        ("build-system = 3\nproject = { name = 'x' }", "build-system of pyproject.toml is not a table"),
        ("# \udcff", "pyproject.toml is broken"),
        (None, "there is no project"),
    ],
)
def test_a_folder_without_a_project_is_refused(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_bytes(text.encode(errors="surrogateescape"))
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


@for_each_row(
    "file, name",
    [
        ("notes-1.0-py3-none-any.whl", "notes"),
        ("notes-1.0-1-py3-none-any.whl", "notes"),
        ("Notes_Server-1.0-py3-none-any.whl", "notes-server"),
        ("notes.server-1.0.dev1-cp312-cp312-linux_x86_64.whl", "notes-server"),
        ("notes-1.0.tar.gz", "notes"),
        ("notes_server-1.0rc1.tar.gz", "notes-server"),
        ("notes-server-1.0.tar.gz", "notes-server"),
        ("notes-2-1.0.tar.gz", "notes-2"),
        ("notes_2-1.0-py3-none-any.whl", "notes-2"),
        ("notes-1!2.0.tar.gz", "notes"),
        ("notes-server-1.0-py3-none-any.whl", None),  # `server` is no version
        ("notes-1.0-x-py3-none-any.whl", None),
        ("notes-1.0.whl", None),
        ("notes.tar.gz", None),
        ("notes-latest.tar.gz", None),
        ("notes-1.0.zip", None),
        ("notes-1.0.mcpb", None),
        ("-1.0.tar.gz", None),
    ],
)
def test_the_project_of_a_built_file_is_read_from_its_whole_name(file: str, name: str | None) -> None:
    assert parse_distribution_name(file) == name


def test_a_build_deletes_files_of_this_very_project_only(project: Path, tmp_path: Path) -> None:
    own = read_project(project)
    name = own.name.replace("-", "_")
    out = tmp_path / "shared"
    out.mkdir()
    others = [
        f"{name}_extra-1.0-py3-none-any.whl",
        f"{name}_2-1.0-py3-none-any.whl",
        f"{own.name}-extra-1.0.tar.gz",
        f"{name}_extra-1.0.tar.gz",
        f"{name}-notes.tar.gz",
        f"{name}-1.0.mcpb",
        f"{name}.whl",
    ]
    mine = [f"{name}-0.0.1-py3-none-any.whl", f"{name}-0.0.1.tar.gz", f"{own.name.upper()}-0.0.2.tar.gz"]
    for file in (*others, *mine):
        (out / file).write_bytes(b"")
    (out / f"{name}-0.0.3.tar.gz").mkdir()
    assert sorted(path.name for path in find_built(own, out)) == sorted(mine)


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True))
def test_a_file_named_by_the_rules_is_found_for_its_own_project_and_no_other(name: str) -> None:
    escaped = normalize_distribution_name(name).replace("-", "_")
    for file in (f"{escaped}-1.0-py3-none-any.whl", f"{escaped}-1.0.tar.gz"):
        assert parse_distribution_name(file) == normalize_distribution_name(name)
