"""Wheels and environments, made for tests; and installed servers, driven by the official client."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import anyio
import mcp
import mcp_types as types

ROOT = Path(__file__).parents[3]


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command prints; one that fails fails the test, with all it said."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} gave {done.returncode}:\n{done.stdout}"
    return done.stdout


def build_wheel(project: Path, into: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into, cwd=project)
    (wheel,) = into.glob(f"{project.name.replace('-', '_') if project != ROOT else 'defserve'}-*.whl")
    return wheel


class Environment:
    """A virtual environment of its own, whose commands have these variables.

    With `borrows`, it finds what another folder holds as if it were installed; with True, what the tests have, but not
    defserve.
    """

    def __init__(self, folder: Path, *, borrows: Path | bool = False, **variables: str) -> None:
        if not folder.exists():
            run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        (self.site,) = folder.glob("lib/python*/site-packages" if os.name != "nt" else "Lib/site-packages")
        self._variables = variables
        if borrows:
            # A path from a .pth file is only searched: the .pth files in it, our editable install, do not count.
            path = sysconfig.get_path("purelib") if borrows is True else str(borrows)
            (self.site / "borrowed.pth").write_text(path, encoding="utf-8")

    @property
    def python(self) -> Path:
        return self.bin / "python"

    def install(self, *what: str | Path) -> None:
        run(*self.pip, "install", "-q", *what, env=self.environ)

    @property
    def pip(self) -> tuple[str | Path, ...]:
        """Ours, made to work on this environment, which has none."""
        return (sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check")

    def run(self, command: str, *arguments: str | Path, cwd: Path | None = None) -> str:
        return run(self.bin / command, *arguments, cwd=cwd, env=self.environ)

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        return {**kept, **self._variables, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}


async def drive(command: Path, tool: str, arguments: dict[str, Any], *, http: str = "auto") -> list[str]:
    """What a tool of an installed server says: over stdio, then over HTTP, there to a client of that mode."""
    process = mcp.StdioServerParameters(command=str(command))
    said = [await _called(process, tool, arguments)]
    on = [str(command), "--on", "http://127.0.0.1:0/mcp"]
    async with await anyio.open_process(on, stdin=subprocess.DEVNULL, stdout=None) as serving:
        assert serving.stderr is not None
        line = (await serving.stderr.receive()).decode()
        assert line.startswith("serving on "), line
        try:
            said.append(await _called(line.removeprefix("serving on ").strip(), tool, arguments, mode=http))
        finally:
            serving.terminate()
    return said


async def _called(server: Any, tool: str, arguments: dict[str, Any], mode: Any = "auto") -> str:
    async with mcp.Client(server, mode=mode, read_timeout_seconds=20) as client:
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, result
        return "".join(block.text for block in result.content if isinstance(block, types.TextContent))
