"""`defserve package` ships nothing private. Who is refused learns which file it is and what to do."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from defserve.tooling.packaging import package
from tests.cli.running import Run
from tests.tooling.packaging.projects import write, write_project

pytest.importorskip("hatchling")

TOKEN = "ghp_" + "a1B2" * 9
ENV = "DATABASE_PASSWORD=correct horse battery\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path / "weather-mcp")


@pytest.fixture
def hatchling_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process builds instead of three."""
    monkeypatch.setattr(package, "_has", lambda module: module == "hatchling")


@pytest.mark.slow
@pytest.mark.usefixtures("hatchling_alone")
def test_a_project_with_private_files_is_not_packaged_and_every_one_is_named(defserve: Run, project: Path):
    private = {
        ".env": ENV,
        "id_rsa": "a key",
        "keys.json": "{}",
        "src/weather_mcp/tls.PEM": "a key",
        "src/weather_mcp/state.db": "data",
        "src/weather_mcp/.aws/credentials": "[default]",
        "audit.jsonl": "{}",
        "src/weather_mcp/notes.txt": f"token: {TOKEN}",
    }
    write(project, private)
    code, out, err = defserve("package", str(project))
    assert (code, out) == (1, "") and "nothing was packaged" in err
    for name in private:
        assert f"  {name.replace('.aws/credentials', '.aws/')}: " in err, name
    assert "src/weather_mcp/notes.txt: it holds a GitHub token" in err and TOKEN not in err
    assert "fix: " in err and ".gitignore" in err and "--allow" in err and "tool.defserve.package" in err
    assert [path.name for path in (project / "dist").iterdir() if not path.name.startswith(".")] == []
    assert defserve("publish", str(project), "--yes").code == 1


@pytest.mark.slow
@pytest.mark.usefixtures("hatchling_alone")
def test_what_is_ignored_or_allowed_is_no_obstacle(defserve: Run, project: Path):
    write(
        project,
        {
            ".env": ENV,
            "server.db": "data",
            ".gitignore": ".env\n*.db\n",
            "src/weather_mcp/ca.pem": "public",
            "tests/token.txt": TOKEN,
        },
    )
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + '\n[tool.defserve.package]\nallow = ["src/weather_mcp/*.pem"]\n')
    assert "tests/token.txt" in defserve("package", str(project)).err
    assert defserve("package", str(project), "--allow", "tests/token.txt").code == 0
    with zipfile.ZipFile(project / "dist" / "weather-mcp-1.2.0.mcpb") as archive:
        assert "src/weather_mcp/ca.pem" in archive.namelist() and "server.db" not in archive.namelist()
    with zipfile.ZipFile(project / "dist" / "weather_mcp-1.2.0-py3-none-any.whl") as archive:
        assert "weather_mcp/ca.pem" in archive.namelist()


@pytest.mark.slow
def test_a_private_file_under_another_name_is_known_again(defserve: Run, project: Path):
    write(project, {".env": ENV, ".gitignore": ".env\n"})
    pyproject = project / "pyproject.toml"
    forced = '\n[tool.hatch.build.targets.sdist.force-include]\n".env" = "src/weather_mcp/defaults.txt"\n'
    pyproject.write_text(pyproject.read_text() + forced)
    code, _, err = defserve("package", str(project))
    assert code == 1
    for place in ("src/weather_mcp/defaults.txt", "weather_mcp/defaults.txt"):
        assert f"  {place}: a copy of .env, settings with secrets" in err


@pytest.mark.parametrize("allow", ['"*.pem"', "[1]", "{ a = 1 }"])
def test_a_setting_that_is_no_list_of_files_is_refused(defserve: Run, project: Path, allow: str):
    pyproject = project / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + f"\n[tool.defserve.package]\nallow = {allow}\n")
    code, _, err = defserve("package", str(project))
    assert code == 1 and "allow is not a list of paths" in err
