from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from defserve.testing import SyncClient
from examples.cookbook.systemd.server import server
from tests.examples.cookbook.pages import PROGRAMS
from tests.examples.cookbook.served import started

HERE = PROGRAMS / "systemd"
UNIT = HERE / "counter.service"


def read_settings() -> dict[str, list[str]]:
    """Each setting of the unit, with all its values."""
    settings: dict[str, list[str]] = {}
    for line in UNIT.read_text().replace("\\\n", " ").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            settings.setdefault(name, []).append(value)
    return settings


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize(
    ("old", "new", "complaint"), [("", "", ""), ("TimeoutStopSec=30", "TimeoutStopSec=x", "parse")]
)
def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path, old: str, new: str, complaint: str):
    text = UNIT.read_text().replace("/opt/counter/bin/python", sys.executable).replace(old, new)
    (tmp_path / UNIT.name).write_text(text)
    # An installation of systemd that does not run has no manual pages, and no bus.
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", UNIT.name], cwd=tmp_path, capture_output=True, text=True
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert bool(said) == bool(complaint) and complaint in "".join(said)


def test_it_may_take_longer_to_stop_than_its_calls():
    (seconds,) = read_settings()["TimeoutStopSec"]
    assert int(seconds) > server.limits.drain


@pytest.mark.slow
def test_the_command_of_the_unit_serves_keeps_its_state_and_stops_when_told(tmp_path: Path):
    settings = read_settings()
    (tmp_path / "secret").write_text("s" * 43)
    variables = dict(os.environ, CREDENTIALS_DIRECTORY=str(tmp_path))
    for assignment in settings["Environment"]:
        name, _, value = assignment.partition("=")
        variables[name] = value.replace("/var/lib/counter", str(tmp_path))
    (line,) = settings["ExecStart"]
    names = {"/opt/counter/bin/python": sys.executable, "/opt/counter/server.py": str(HERE / "server.py")}
    command = [names.get(word, word) for word in shlex.split(line)]
    for count in (1, 2):
        with started(command, tmp_path, variables, tmp_path / "log") as (process, port):
            with SyncClient(
                f"http://localhost:{port}/mcp", "stateless", headers={"host": "tools.example.com"}
            ) as client:
                assert client.call("count_up") == count
            process.terminate()
            assert process.wait(int(settings["TimeoutStopSec"][0])) == 0
