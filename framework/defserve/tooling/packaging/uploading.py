"""The commands that publish a package. This module does not run them."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from defserve.errors import UsageError
from defserve.tooling.installing import install_command
from defserve.tooling.packaging.package import Package


class Upload(NamedTuple):
    """A command, what it does, and the folder to run it in."""

    about: str
    command: tuple[str, ...]
    folder: Path
    fix: str
    """How to install the program; empty if it is installed."""


def uploads(package: Package, out: Path) -> list[Upload]:
    """The uploads, in order. The registry comes last: it looks in the package index for the marker in the README."""
    built = tuple(path.name for path in package.files if path.name.endswith((".whl", ".tar.gz")))
    return [
        Upload("wheel and sdist to the package index", _index(built), out, _missing_index()),
        Upload(
            "server.json to the MCP registry",
            (shutil.which("mcp-publisher") or "mcp-publisher", "publish"),
            out,
            "" if shutil.which("mcp-publisher") else "install mcp-publisher, and log in: mcp-publisher login github",
        ),
    ]


def check_ready(planned: list[Upload]) -> None:
    """Raises UsageError if a program is missing: half a release is worse than none."""
    for upload in planned:
        if upload.fix:
            raise UsageError(f"{upload.command[0]} is not installed; nothing was uploaded", fix=upload.fix)


def _index(built: tuple[str, ...]) -> tuple[str, ...]:
    if find_spec("twine") is not None:
        return (sys.executable, "-m", "twine", "upload", *built)
    if uv := shutil.which("uv"):
        return (uv, "publish", *built)
    return ("twine", "upload", *built)


def _missing_index() -> str:
    return "" if find_spec("twine") or shutil.which("uv") else install_command("twine")
