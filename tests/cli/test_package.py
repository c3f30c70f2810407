from __future__ import annotations

import json
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from defserve.tooling.packaging import package
from defserve.tooling.project_template import find_placeholders, load_template_questions
from tests.cli.running import Run
from tests.tooling.packaging.projects import change, write, write_project

pytest.importorskip("hatchling")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was packaged once."""
    from defserve.cli import main

    project = write_project(tmp_path_factory.mktemp("packaging") / "weather-mcp")
    assert main(["package", str(project)]) == 0
    return project


@pytest.fixture(autouse=True)
def without_build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are built with hatchling alone: one process instead of three."""
    if "built" in request.fixturenames:
        request.getfixturevalue("built")
    built_by = package._has
    monkeypatch.setattr(package, "_has", lambda module: module != "build" and built_by(module))


@pytest.mark.slow
def test_a_package_is_all_that_is_published(built: Path):
    assert sorted(path.name for path in (built / "dist").iterdir() if not path.name.startswith(".")) == [
        "server.json",
        "tools.json",
        "weather-mcp-1.2.0.mcpb",
        "weather_mcp-1.2.0-py3-none-any.whl",
        "weather_mcp-1.2.0.tar.gz",
    ]
    server = json.loads((built / "dist" / "server.json").read_text())
    assert (server["name"], server["version"]) == ("io.github.ann/weather-mcp", "1.2.0")


@pytest.mark.slow
def test_the_tools_are_those_of_the_server_in_the_wheel(built: Path):
    (tool,) = json.loads((built / "dist" / "tools.json").read_text())
    assert (tool["name"], tool["description"]) == ("forecast", "Tell the weather.")
    assert tool["arguments"] == [
        {"name": "city", "type": "string", "desc": "Where."},
        {"name": "days", "type": "integer", "desc": ""},
    ]
    assert tool["inputSchema"]["required"] == ["city"]


@pytest.mark.slow
def test_what_does_not_agree_is_named_and_fails(defserve: Run, built: Path, tmp_path: Path):
    project = write_project(tmp_path / "weather-mcp")
    server = project / "server.json"
    server.write_bytes((built / "dist" / "server.json").read_bytes())
    change(server, version="1.1.0", title="")
    code, out, err = defserve("package", str(project), "--json")
    assert code == 6
    problems = json.loads(out)["problems"]
    shown = [f"problem: {each['problem']}\n  fix: {each['fix']}" for each in problems]
    assert err.splitlines() == "\n".join(shown).splitlines()
    assert "server.json: version is '1.1.0', but the wheel has '1.2.0'" in err and "server.json: title" in err


@pytest.mark.slow
def test_a_wheel_without_its_server_is_found_out(defserve: Run, tmp_path: Path):
    project = write_project(tmp_path / "weather-mcp")
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"weather_mcp:server"', '"weather_mcp.forgotten:server"'))
    code, _, err = defserve("package", str(project), "--out", str(tmp_path / "out"))
    assert code == 6 and "weather_mcp.forgotten" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "cause"),
    [("weather_mcp.srv:server.main", "No module named 'weather_mcp.srv'"), ("weather_mcp:server.name", "it is not a")],
)
def test_a_command_that_cannot_start_is_found_out(defserve: Run, tmp_path: Path, script: str, cause: str):
    project = write_project(tmp_path / "weather-mcp")
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"weather_mcp:server.main"', f'"{script}"'))
    code, _, err = defserve("package", str(project), "--out", str(tmp_path / "out"))
    assert code == 6 and f"the command weather-mcp of the wheel fails: {script}: " in err and cause in err
    assert "fix: correct its line in [project.scripts]" in err


@pytest.mark.slow
def test_a_server_without_a_version_has_that_of_its_wheel(defserve: Run, tmp_path: Path):
    project = write_project(tmp_path / "weather-mcp")
    server = project / "src" / "weather_mcp" / "__init__.py"
    server.write_text(server.read_text().replace(', "1.2.0"', ""))
    assert defserve("package", str(project), "--out", str(tmp_path / "out")).code == 0
    server.write_text(server.read_text().replace('"weather"', '"weather", "1.0.0"'))
    code, _, err = defserve("package", str(project), "--out", str(tmp_path / "out"))
    assert code == 6 and "the server says that its version is '1.0.0', but the wheel has '1.2.0'" in err


@pytest.mark.slow
def test_other_people_s_files_stay_in_the_folder(defserve: Run, tmp_path: Path):
    project, other = write_project(tmp_path / "weather-mcp"), tmp_path / "out" / "other-1.0.tar.gz"
    other.parent.mkdir()
    other.touch()
    assert defserve("package", str(project), "--out", str(other.parent)).code == 0
    assert other.exists()


@pytest.mark.slow
def test_a_build_that_fails_shows_why(defserve: Run, tmp_path: Path):
    project = write_project(tmp_path / "weather-mcp")
    (project / "README.md").unlink()
    code, _, err = defserve("package", str(project))
    assert code == 1 and "building failed" in err and "README" in err


def test_a_folder_that_cannot_be_written_is_told_with_a_fix(defserve: Run, tmp_path: Path):
    project = write_project(tmp_path / "weather-mcp")
    (tmp_path / "file").touch()
    code, _, err = defserve("package", str(project), "--out", str(tmp_path / "file" / "out"))
    assert code == 1
    assert err.startswith("error: cannot write ") and "fix: name a folder that you can write: --out DIR" in err


# -- publishing ------------------------------------------------------------------------------------------


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The upload commands that were run; everything else is run as ever."""
    run, seen = subprocess.run, list[list[str]]()

    def watched(command: Any, **options: Any) -> Any:
        if not {"upload", "publish"} & set(command):
            return run(command, **options)
        seen.append([*command])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", watched)
    return seen


def there(monkeypatch: pytest.MonkeyPatch, *commands: str) -> None:
    monkeypatch.setattr(package.shutil, "which", lambda name: f"/bin/{name}" if name in commands else None)
    find = package.find_spec
    monkeypatch.setattr(package, "find_spec", lambda name: None if name == "twine" else find(name))


@pytest.mark.slow
def test_nothing_is_uploaded_unless_told_so(
    defserve: Run, built: Path, uploads: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    there(monkeypatch, "uv", "mcp-publisher")
    code, out, err = defserve("publish", str(built))
    assert (code, uploads) == (0, [])
    assert "uv publish weather_mcp-1.2.0-py3-none-any.whl weather_mcp-1.2.0.tar.gz" in out
    assert "mcp-publisher publish" in out and "Nothing was uploaded" in err


@pytest.mark.slow
def test_told_so_it_uploads_to_the_index_and_then_to_the_registry(
    defserve: Run, built: Path, uploads: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    there(monkeypatch, "uv", "mcp-publisher")
    assert defserve("publish", str(built), "--yes").code == 0
    assert [command[:2] for command in uploads] == [["/bin/uv", "publish"], ["/bin/mcp-publisher", "publish"]]


@pytest.mark.slow
def test_with_one_uploader_missing_nothing_is_uploaded(
    defserve: Run, built: Path, uploads: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    there(monkeypatch, "uv")
    code, _, err = defserve("publish", str(built), "--yes")
    assert (code, uploads) == (1, []) and "install mcp-publisher" in err


@pytest.mark.slow
def test_what_has_problems_is_not_uploaded(
    defserve: Run, tmp_path: Path, uploads: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    there(monkeypatch, "uv", "mcp-publisher")
    project = write_project(tmp_path / "weather-mcp")
    (project / "README.md").write_text("# Weather")
    code, _, err = defserve("publish", str(project), "--yes")
    assert (code, uploads) == (6, []) and "no marker" in err and "nothing was uploaded" in err


# -- what nobody has made their own ------------------------------------------------------------------------

STILL = (
    "still the defaults of 'defserve new': author (Your Name), GitHub account (your-name), "
    "registry name (io.github.your-name/…), "
    "description (A server with one tool)\n  fix: edit pyproject.toml, LICENSE, manifest.json, server.json, README.md, "
    "Dockerfile\n"
)


@pytest.mark.slow
def test_a_project_as_new_made_it_is_packaged_with_a_warning_and_not_published(
    defserve: Run, folder: Path, uploads: list[list[str]], monkeypatch: pytest.MonkeyPatch
):
    there(monkeypatch, "uv", "mcp-publisher")
    defserve("new", "fresh", "--yes")
    assert defserve("package", "fresh").err.endswith(f"warning: {STILL}")
    code, out, err = defserve("publish", "fresh", "--yes")
    assert (code, out, err, uploads) == (1, "", f"error: {STILL}", [])


def test_what_is_somebodys_own_is_no_placeholder(defserve: Run, folder: Path):
    said = ("--author", "Ada", "--github-user", "ada", "--description", "A server with one tool, and more")
    defserve("new", "own", *said, "--yes")
    assert find_placeholders(folder / "own", load_template_questions()) == []
    readme = folder / "own" / "README.md"
    readme.write_text(readme.read_text().replace("io.github.ada", "io.github.your-name"))
    (left,) = find_placeholders(folder / "own", load_template_questions())
    assert (str(left), left.files) == ("registry name (io.github.your-name/…)", ("README.md",))


SKILLED = """
from defserve import Server

server = Server("weather", "1.2.0")
server.skills("skills")
"""
SKILL = "---\nname: outing\ndescription: Plan an outing by the weather.\n---\nSee [places](docs/places.md).\n"


@pytest.mark.slow
def test_a_skill_is_shipped_with_its_server(defserve: Run, tmp_path: Path):
    project = write_project(tmp_path / "weather-mcp")
    home = "src/weather_mcp"
    files = {f"{home}/skills/outing/SKILL.md": SKILL, f"{home}/skills/outing/docs/places.md": "The lake.\n"}
    write(project, {f"{home}/__init__.py": SKILLED, **files})
    code, _, err = defserve("package", str(project))
    assert (code, err) == (0, "")
    dist = project / "dist"
    wheel = zipfile.ZipFile(next(dist.glob("*.whl"))).namelist()
    bundle = zipfile.ZipFile(next(dist.glob("*.mcpb"))).namelist()
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        source = archive.getnames()
    for path in files:
        assert path.removeprefix("src/") in wheel
        assert path in bundle
        assert f"weather_mcp-1.2.0/{path}" in source


@pytest.mark.slow
def test_a_wheel_that_forgets_its_skills_is_found_out(defserve: Run, tmp_path: Path):
    project = write_project(tmp_path / "weather-mcp")
    # Beside the package instead of in it: there when the author runs it, and not in the wheel.
    write(project, {"src/weather_mcp/__init__.py": SKILLED.replace('skills"', '../../skills"')})
    write(project, {"skills/outing/SKILL.md": SKILL, "skills/outing/docs/places.md": "The lake.\n"})
    code, _, err = defserve("package", str(project))
    assert code == 6 and "there is no skill below" in err and "put the folder into the package" in err


def test_a_single_file_is_told_how_to_become_a_project(defserve: Run, tmp_path: Path):
    (tmp_path / "my_notes.py").write_text("")
    code, _, err = defserve("package", str(tmp_path / "my_notes.py"))
    assert code == 1 and "is a file, and a package is made of a project" in err
    assert "defserve new my-notes --template minimal" in err
