"""Peers reach this machine's loopback and nothing else: they run where there is no other network."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from fcntl import ioctl

_UP, _GET_FLAGS, _SET_FLAGS = 1, 0x8913, 0x8914
# What peers would send home, or ask for: versions, usage, crash reports.
QUIET = {
    "DO_NOT_TRACK": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "ANONYMIZED_TELEMETRY": "false",
    "MCP_USE_ANONYMIZED_TELEMETRY": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "FASTMCP_CHECK_FOR_UPDATES": "off",
    "OTEL_SDK_DISABLED": "true",
    "NO_UPDATE_NOTIFIER": "1",
    "MCP_AUTO_OPEN_ENABLED": "false",
    "BROWSER": "true",
}
_KEPT = ("PATH", "LANG", "LC_ALL", "TERM", "TMPDIR")


def isolated(arguments: Sequence[str]) -> int | None:
    """Run `python -m tests.peers ARGUMENTS` in a network of its own, and give back its exit code.

    None where the operating system has no such thing, or does not allow it.
    """
    unshare = shutil.which("unshare")
    enter = [unshare or "", "--net", "--map-root-user"]
    if not unshare or subprocess.run([*enter, "true"], capture_output=True).returncode:
        return None
    return subprocess.run([*enter, sys.executable, "-m", "tests.peers", *arguments]).returncode


def raise_loopback() -> None:
    """A new network has its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sH22x", b"lo", 0)
        (flags,) = struct.unpack_from("16xH", ioctl(any_socket, _GET_FLAGS, asked))
        ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", flags | _UP))


def environment(home: str) -> dict[str, str]:
    """Variables for one peer: a home of its own, nothing of the user's, and no proxy."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **QUIET, "HOME": home, "NO_PROXY": "*"}
