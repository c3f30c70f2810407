from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Run

SERVER = "from defserve import Server\nserver = Server('x')\n@server.tool\ndef one() -> int:\n    return 1\n"
TESTS = """
import pytest
from server import server

@pytest.mark.serves(server)
def test_one(client):
    assert client.call("one") == 1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "framework"))
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\npythonpath = ['.']\naddopts = '-p no:cacheprovider'\n"
    )
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "tests").mkdir()
    return tmp_path


@pytest.mark.slow
def test_the_tests_of_a_project_run_with_the_client_fixture(defserve: Run, project: Path):
    (project / "tests" / "test_server.py").write_text(TESTS)
    assert defserve("test", str(project / "server.py"), "--", "-q").code == 0
    assert defserve("test", str(project), "--", "-q", "-k", "nothing").code == 5


@pytest.mark.slow
def test_a_test_that_fails_is_the_exit_code(defserve: Run, project: Path):
    (project / "tests" / "test_server.py").write_text(TESTS.replace("== 1", "== 2"))
    assert defserve("test", str(project)).code == 1


@pytest.mark.slow
def test_a_project_without_tests_is_told_how_to_write_one(defserve: Run, project: Path):
    code, _, err = defserve("test", str(project))
    assert code == 1 and "no tests" in err and "def test_it(client)" in err


def test_what_is_not_there_is_not_tested(defserve: Run):
    assert "there is no 'nowhere'" in defserve("test", "nowhere").err
