from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from defserve import Server, ToolError
from defserve.errors import PeerError
from defserve.testing import SyncClient
from tests.at_address import fresh

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git (apt-get install git)")


@pytest.fixture
def server(folder: Path) -> Server:
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=folder, check=True)
    (folder / "tea.txt").write_text("green\n")
    return fresh("cookbook.shell")


def test_a_command_on_the_list_runs_in_the_repository(client: SyncClient):
    assert client.call("run_command", command="git status --short") == "?? tea.txt\n"
    assert client.call("run_command", command="ls") == "tea.txt\n"
    with pytest.raises(ToolError, match="It ended with 128"):
        client.call("run_command", command="git log")


def test_everything_else_is_refused_before_it_runs(client: SyncClient, folder: Path):
    for command in ("rm tea.txt", "git clean -f", "ls; rm tea.txt", "ls $(rm tea.txt)", "ls > tea.txt", "ls /root"):
        with pytest.raises((ToolError, PeerError), match="refused|rejected|Blocked"):
            client.call("run_command", command=command)
    assert (folder / "tea.txt").read_text() == "green\n"


def test_a_long_output_is_cut(client: SyncClient, folder: Path):
    for number in range(600):
        (folder / f"{number:0>200}").touch()
    assert client.call("run_command", command="ls").endswith("more characters")
