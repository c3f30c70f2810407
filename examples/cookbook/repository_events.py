"""A server that tells who pushed to a git repository: by poll, by stream and by webhook."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from defserve import Server

FOLDER = Path(os.environ.get("REPOSITORIES", "."))
SECONDS = 2.0

server = Server("forge", "1.0.0", store=os.environ.get("EVENTS_STORE"), experimental=["events"])

# A caller chooses it, and it becomes a path.
Repository = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$", description="The name of a repository")]


class Push(BaseModel):
    """A branch that points to another commit than before."""

    repository: str
    branch: str
    before: str | None
    after: str


async def read_branches(repository: str) -> dict[str, str]:
    """Each branch and its commit."""
    command = ("git", "-C", str(FOLDER / repository), "for-each-ref", "--format=%(refname:short) %(objectname)")
    running = await asyncio.create_subprocess_exec(*command, "refs/heads", stdout=asyncio.subprocess.PIPE)
    output, _ = await running.communicate()
    return dict(line.rsplit(" ", 1) for line in output.decode().splitlines())


@server.event
async def pushed(repository: Repository, branch: str | None = None) -> AsyncIterator[Push]:
    """Somebody pushed to a branch."""
    known = await read_branches(repository)
    while True:
        await asyncio.sleep(SECONDS)
        now = await read_branches(repository)
        for name, commit in now.items():
            if commit != known.get(name) and branch in (None, name):
                yield Push(repository=repository, branch=name, before=known.get(name), after=commit)
        known = now


if __name__ == "__main__":
    server.main()
