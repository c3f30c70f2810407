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
# Those that keep something for each caller, whom only a session tells apart where nobody signs in.
SESSIONS = ("stateful",)
PARTS = (("tool", "one"), ("resource", "two"), ("prompt", "three"), ("feature-set", "four.five"))


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def author(tmp_path_factory: pytest.TempPathFactory, ours: Path) -> Environment:
    """Where projects are worked on: what one of them needs for that serves all."""
    folder = tmp_path_factory.mktemp("author")
    environment = Environment(folder / "env")
    environment.install(f"{ours}[sandbox]")
    environment.run("defserve", "new", "first-mcp", "--yes", cwd=folder)
    environment.install("--find-links", ours.parent, "-e", f"{folder / 'first-mcp'}[dev]")
    return environment


@pytest.mark.parametrize("body", CALLS)
async def test_from_new_to_an_installed_server(tmp_path: Path, ours: Path, author: Environment, body: str):
    author.run("defserve", "new", f"{body}-mcp", "--template", body, "--yes", cwd=tmp_path)
    project = tmp_path / f"{body}-mcp"
    author.install("--no-deps", "-e", project)
    author.run("defserve", "check", "--strict", "-m", f"{body}-mcp".replace("-", "_"), cwd=project)
    for kind, name in PARTS:
        author.run("defserve", "add", kind, name, cwd=project)
    author.run("pytest", "-q", cwd=project)
    author.run("ruff", "check", ".", cwd=project)
    author.run("ruff", "format", "--check", ".", cwd=project)
    author.run("mypy", cwd=project)

    author.run("defserve", "package", cwd=project)
    (wheel,) = (project / "dist").glob("*.whl")
    user = Environment(tmp_path / "user")
    user.install("--find-links", ours.parent, f"{wheel}[http]")
    tool, arguments, expected = CALLS[body]
    mode = "legacy" if body in SESSIONS else "auto"
    for said in await drive(user.bin / f"{body}-mcp", tool, arguments, http=mode):
        assert expected in said
