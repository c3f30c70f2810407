from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from defserve.errors import PeerError
from examples.cookbook import repository_events
from tests.at_address import fresh
from tests.waiting import DEADLINE

pytestmark = pytest.mark.anyio


def git(folder: Path, *arguments: str) -> None:
    about = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *about, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REPOSITORIES", str(tmp_path))
    folder = tmp_path / "site"
    folder.mkdir()
    git(folder, "init", "--initial-branch=main")
    git(folder, "commit", "--allow-empty", "-m", "first")
    return folder


async def test_a_push_is_told_to_who_listens(repository: Path):
    import asyncio

    server = fresh("cookbook.repository_events")
    repository_events.SECONDS = 0.01
    async with asyncio.timeout(DEADLINE), server.connect() as client:
        async with client.listen_events("pushed", repository="site", branch="main") as events:
            waiting = asyncio.create_task(anext(events))
            while not waiting.done():
                # The source may not have looked yet, so one commit is not enough.
                await asyncio.to_thread(git, repository, "commit", "--allow-empty", "-m", "more")
                await asyncio.wait((waiting,), timeout=0.2)
            push = (await waiting).data
    assert (push["repository"], push["branch"]) == ("site", "main")
    assert push["before"] != push["after"]


@pytest.mark.parametrize("name", ["..", "../etc", "a/b", "", "x" * 65])
async def test_a_name_is_no_path(repository: Path, name: str):
    server = fresh("cookbook.repository_events")
    async with server.connect() as client:
        with pytest.raises(PeerError):
            await anext(client.listen_events("pushed", repository=name))
