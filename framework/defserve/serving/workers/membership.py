"""How a worker knows that it is one: its supervisor names it in the environment, and gives it a socket to talk on."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

VARIABLE: Final = "DEFSERVE_WORKER"
LONGEST_SECRETS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Membership:
    """The place of a worker in its group. `control` and `sockets` are file descriptors that it inherits.

    `inode` is that of `control`. A process that a worker starts has the same environment, but not that socket.
    """

    number: int
    count: int
    control: int
    inode: int
    sockets: tuple[int, ...]

    def written(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, number: int, count: int, control: socket.socket, sockets: tuple[int, ...]) -> Membership:
        return cls(number, count, control.fileno(), os.fstat(control.fileno()).st_ino, sockets)


@dataclass(frozen=True, slots=True)
class GroupSecrets:
    """The first line that a supervisor sends. The environment is no place for secrets.

    `key` is the local token of the address, if it has one. `secret` seals questions, if the server has no secret.
    """

    key: str | None
    secret: str

    def written(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def membership(environment: Mapping[str, str] = os.environ) -> Membership | None:
    """What this process is in a group of workers; None if it is not a worker."""
    written = environment.get(VARIABLE)
    if written is None:
        return None
    with suppress(ValueError, TypeError, KeyError, OSError):
        given: dict[str, Any] = json.loads(written)
        found = replace(Membership(**given), sockets=tuple(given["sockets"]))
        if os.fstat(found.control).st_ino == found.inode:
            return found
    return None


def join(member: Membership) -> tuple[socket.socket, GroupSecrets]:
    """Take the control socket and read the secrets. Raises EOFError if the supervisor is gone.

    After that, processes of this worker cannot take themselves for one.
    """
    os.environ.pop(VARIABLE, None)
    for number in (member.control, *member.sockets):
        os.set_inheritable(number, False)
    control = socket.socket(fileno=member.control)
    control.setblocking(True)
    line = b""
    # One byte at a time: what follows belongs to the loop.
    while not line.endswith(b"\n") and len(line) < LONGEST_SECRETS:
        piece = control.recv(1)
        if not piece:
            control.close()
            raise EOFError("the supervisor is gone")
        line += piece
    return control, GroupSecrets(**json.loads(line))
