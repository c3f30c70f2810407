"""Every template, as its author and then its users meet it: made, tested, built, installed, driven by a client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.effort import slow
from tests.tooling.scaffold.packages import Environment, drive, run
from tests.tooling.scaffold.workflows import commands

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

# body -> (a tool, its arguments, what is in its answer)
CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "minimal": ("greet", {"name": "Ada"}, "Hello, Ada!"),
    "tools": ("search", {"query": "green"}, "Green tea"),
    "app": ("roll", {"count": 3}, '"total"'),
    "memory": ("remember", {"fact": "Ada prefers green tea"}, "Remembered."),
    "compliance": ("redact", {"text": "Write to ada@example.org"}, "Write to [REDACTED]"),
    "channel": ("post", {"author": "Ada", "text": "Hello"}, "Posted"),
    "stateful": ("add_note", {"text": "milk"}, "1"),
    "code-runner": ("evaluate", {"code": "1 + 2"}, "3"),
    "skill": ("find_tasks", {"notes": "TODO(Ada): write"}, "Ada"),
}
# One that only has tools, one with a view, one that keeps something.
SAMPLE = ("minimal",)
# Those that keep something for each caller, whom only a session tells apart where nobody signs in.
SESSIONS = ("stateful",)
PARTS = (("tool", "one"), ("resource", "two"), ("prompt", "three"), ("feature-set", "four.five"))


def step(environment: Environment, project: Path, command: str, **variables: str) -> None:
    """Run what a step of a workflow runs, as GitHub runs it."""
    run("bash", "-e", "-c", command, cwd=project, env={**environment.environ, **variables})


@pytest.mark.parametrize("body", [body if body in SAMPLE else slow(body) for body in CALLS])
async def test_from_new_to_an_installed_server(
    tmp_path: Path, author: Environment, user: Environment, mcpb: Callable[..., str], body: str
):
    name = f"{body}-mcp"
    author.run("defserve", "new", name, "--template", body, "--yes", cwd=tmp_path)
    project = tmp_path / name
    install, *steps = commands(project, "ci", "check")
    for command in (install, *steps):
        step(author, project, command)
    author.run("defserve", "check", "--strict", name, cwd=project)
    for kind, part in PARTS:
        author.run("defserve", "add", kind, part, cwd=project)
    for command in steps:
        step(author, project, command)

    (bundle,) = (project / "release").glob("*.mcpb")
    mcpb("validate", project / "manifest.json")
    mcpb("unpack", bundle, tmp_path / "unpacked")
    mcpb("validate", tmp_path / "unpacked" / "manifest.json")

    (wheel,) = (project / "release").glob("*.whl")
    user.install(f"{wheel}[http]")
    tool, arguments, expected = CALLS[body]
    mode = "legacy" if body in SESSIONS else "auto"
    for said in await drive(user.bin / name, tool, arguments, http=mode):
        assert expected in said


@pytest.mark.slow
def test_the_release_workflow_builds_what_the_tag_says(tmp_path: Path, author: Environment):
    author.run("defserve", "new", "released-mcp", "--yes", cwd=tmp_path)
    project = tmp_path / "released-mcp"
    steps = commands(project, "release", "build")
    for command in steps:
        step(author, project, command, GITHUB_REF_NAME="v0.1.0")
    uploaded = {path.name for path in (project / "dist").iterdir()}
    assert uploaded == {"released_mcp-0.1.0-py3-none-any.whl", "released_mcp-0.1.0.tar.gz"}
    (tag,) = [command for command in steps if "GITHUB_REF_NAME" in command]
    with pytest.raises(AssertionError, match="gave 1"):
        step(author, project, tag, GITHUB_REF_NAME="v0.1.1")
