"""What is inspected, as the command that starts the inspector gives it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from defserve.host.link import Link
from defserve.inspector.kernels.control import KernelControl
from defserve.inspector.states.stored import Stored
from defserve.protocols.mgp.audit.replay import ReadableAuditLog


@dataclass(frozen=True, slots=True)
class Target:
    """A server that can be connected to any number of times.

    address  where it is, in words for the status line: a URL, a command, a file
    words    how a `defserve` command names it: `("server.py",)`, or `("--", "node", "server.js")`
    link     opens one more connection. The client closes the link; the block ends what carried it.
    era      the era of the first conversation; "" agrees on the newest
    kernel   how its operator reaches it, if it is a kernel of this user
    stored   finds the checkpoints of its feature sets in a store, if that can be read
    audit    gives its audit log, if that can be read; asked for when it is first looked at
    sign_in_at  the address that a person can sign in to; "" if there is none, or if credentials were given
    tracebacks  a sentence that says where the tracebacks of its errors are; "" if that is unknown
    """

    address: str
    words: tuple[str, ...]
    link: Callable[[], AbstractAsyncContextManager[Link]]
    era: str = ""
    stored: Stored | None = None
    kernel: KernelControl | None = None
    audit: Callable[[], ReadableAuditLog | None] | None = None
    sign_in_at: str = ""
    tracebacks: str = ""
