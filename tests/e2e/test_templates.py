"""Every template, as its author and then its users meet it: made, tested, built, installed, driven by a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scaffold.packages import ROOT, Environment, build_wheel, drive

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

# body -> (a tool, its arguments, what is in its answer)
CALLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "minimal": ("greet", {"name": "Ada"}, "Hello, Ada!"),
    "tools": ("search", {"query": "green"}, "Green tea"),
    "memory": ("remember", {"fact": "Ada prefers green tea"}, "Remembered."),
    "compliance": ("redact", {"text": "Write to ada@example.org"}, "Write to [REDACTED]"),
    "channel": ("post", {"author": "Ada", "text": "Hello"}, "Posted"),
    "stateful": ("add_note", {"text": "milk"}, "1"),
    "code-runner": ("evaluate", {"code": "1 + 2"}, "3"),
}
PARTS = (("tool", "one"), ("resource", "two"), ("prompt", "three"), ("feature-set", "four.five"))


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.parametrize("body", CALLS)
async def test_from_new_to_an_installed_server(tmp_path: Path, ours: Path, body: str):
    author = Environment(tmp_path / "author")
    author.install(ours)
    author.run("defserve", "new", f"{body}-mcp", "--template", body, "--yes", cwd=tmp_path)
    project = tmp_path / f"{body}-mcp"
    author.install("--find-links", ours.parent, "-e", f"{project}[dev]")
    for kind, name in PARTS:
        author.run("defserve", "add", kind, name, cwd=project)
    author.run("pytest", "-q", cwd=project)
    author.run("ruff", "check", ".", cwd=project)
    author.run("ruff", "format", "--check", ".", cwd=project)
    author.run("mypy", cwd=project)

    wheel = build_wheel(project, tmp_path / "dist")
    user = Environment(tmp_path / "user")
    user.install("--find-links", ours.parent, f"{wheel}[http]")
    tool, arguments, expected = CALLS[body]
    for said in await drive(user.bin / f"{body}-mcp", tool, arguments):
        assert expected in said
