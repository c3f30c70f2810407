"""What a command is pointed at: a Python server in this process, a command that runs one over stdio, or an address.

Light, because `defserve run` comes through here: how to connect is `connecting`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, redirect_stdout
from typing import Any, Final

from defserve.errors import UsageError
from defserve.host.addresses import is_address
from defserve.host.targets import load_server

TARGET_HELP: Final = (
    "server.py, server.py:name, module:name, http://host:port/mcp, ws://host:port/mcp; or none, with `-- command args`"
    " at the end"
)


class Target:
    """A server object, the command that starts one, or the address of one that runs."""

    __slots__ = ("server", "command", "address")

    def __init__(self, server: Any = None, command: Sequence[str] = (), address: str = "") -> None:
        self.server, self.command, self.address = server, tuple(command), address


def quiet() -> AbstractContextManager[Any]:
    """What a server prints in this process goes to stderr: stdout is for the command's own result."""
    return redirect_stdout(sys.stderr)


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The arguments before `--`, and the command after it; None when there is no `--`."""
    if "--" not in argv:
        return list(argv), None
    cut = list(argv).index("--")
    if cut + 1 == len(argv):
        raise UsageError("there is nothing after `--`", fix="give the command that starts the server: -- python x.py")
    return list(argv[:cut]), list(argv[cut + 1 :])


def resolve(words: list[str], module: str | None, command: list[str] | None) -> Target:
    """The target of a command line. Takes its word from the front of `words` when it is named there."""
    if command is not None:
        return Target(command=command)
    if module is not None:
        return Target(load_package(module))
    if not words:
        raise UsageError("no server is named", fix=f"say which: {TARGET_HELP}")
    named = words.pop(0)
    return Target(address=named) if is_address(named) else Target(load(named))


def headers_of(given: list[str]) -> dict[str, str]:
    """`Name: value` texts as headers."""
    pairs = [text.partition(":") for text in given]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise UsageError(f"{name!r} is no header", fix='write -H "Name: value"')
    return {name.strip(): value.strip() for name, _, value in pairs}


def load(target: str) -> Any:
    """The server that `target` names, looked for from the current folder."""
    if is_address(target):
        raise UsageError(
            f"{target!r} is an address, and what is served has to be here", fix="name server.py or module:name"
        )
    _search_here()
    return load_server(target)


def load_package(package: str) -> Any:
    """The server of a package: in the package itself, or in its module `server`."""
    _search_here()
    try:
        return load_server(package)
    except UsageError as error:
        try:
            return load_server(f"{package}.server")
        except UsageError:
            raise error from None


def _search_here() -> None:
    # A console script does not have it, `python -m` does.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
