"""Opaque checkpoints: the server keeps the real thing elsewhere, hosts get names for it, and a rollback undoes.

What is kept of a checkpoint is only where the branch stood; `undo` puts the working tree back there.
"""

import os
from hashlib import sha1

from pydantic import BaseModel

from defserve import Server, State, ToolError
from defserve.state import CannotUndo, Checkpoint

server = Server("git-like", "1.0.0", store=os.environ.get("GIT_STORE", "memory:"))
git = server.feature_set("git.commit", "Git operations")

# The outside world: commits by their hash, the working tree, and those that everybody has seen.
commits: dict[str, tuple[str | None, str]] = {}
tree: dict[str, str | None] = {"head": None, "pushed": None}


class Branch(BaseModel):
    commit: str | None = None


branches = git.state(Branch, mode="opaque", per="server")


@git.tool
async def git_commit(message: str, branch: State[Branch]) -> str:
    """Commit what there is."""
    commit = sha1(f"{branch.commit} {message}".encode()).hexdigest()[:10]
    commits[commit] = (branch.commit, message)
    branch.commit = tree["head"] = commit
    return commit


@git.tool
async def git_log(branch: State[Branch]) -> list[str]:
    """The messages, the latest first."""
    return [commits[commit][1] for commit in history(branch.commit)]


@git.tool
async def git_push(branch: State[Branch]) -> str:
    """Show everybody; there is no way back behind this."""
    if branch.commit is None:
        raise ToolError("nothing to push")
    tree["pushed"] = branch.commit
    return branch.commit


@git.on_rollback
async def undo(to: Checkpoint) -> None:
    """Put the working tree back, unless others may have built on what would go."""
    commit = (await branches.at(to)).commit
    if tree["pushed"] is not None and tree["pushed"] not in history(commit):
        raise CannotUndo(f"{tree['pushed']} was pushed")
    tree["head"] = commit


def history(commit: str | None) -> list[str]:
    found: list[str] = []
    while commit is not None:
        found.append(commit)
        commit = commits[commit][0]
    return found


if __name__ == "__main__":
    server.main()
