"""What a server must share before several processes can serve it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from defserve.core.composition import Composition
from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_array

if TYPE_CHECKING:
    from defserve.auth import Auth
    from defserve.serving.options import WebFields
    from defserve.stores.store import Store


class SharingServer(Protocol):
    """The part of a server that says what it keeps, and where."""

    shared: str | None

    @property
    def store(self) -> Store | None: ...
    @property
    def composition(self) -> Composition: ...


def check_sharing(server: SharingServer, count: int, options: WebFields) -> None:
    """Raises UsageError if several workers would not know what they need from one another."""
    if file := _audit_file(server):
        # Also for one worker: it and the one that replaces it run side by side for a while.
        raise UsageError(
            f"workers cannot share the audit log {file}: one process at a time writes to a file",
            fix='keep it in a store: Server(audit="sqlite:///audit.db"), or "redis://…"',
        )
    if count == 1:
        return
    if options.get("legacy_sse", False):
        raise UsageError(
            "--legacy-sse needs one process: its clients send and listen on different connections",
            fix="leave out --workers, or --legacy-sse",
        )
    if not options.get("stateless", False) and server.shared is None:
        raise UsageError(
            f"{count} workers cannot share the sessions of clients, which are kept in the memory of one process",
            fix='keep them in a Redis: Server(shared="redis://localhost:6379/0"), or as the store; or serve only '
            "clients that need no session (2026-07-28): --stateless (in code: stateless=True)",
        )
    auth: Auth | None = getattr(server, "auth", None)
    if auth is not None and auth.kept_in_memory:
        raise UsageError(
            f"{count} workers cannot share {auth.kept_in_memory}, which are kept in the memory of one process",
            fix='name a store there: "sqlite:///shared.db" on one machine, or "redis://localhost:6379/0"',
        )
    for what in _kept_in_memory(server):
        raise UsageError(
            f"{count} workers cannot share {what}, which this server keeps in the memory of one process",
            fix='give Server(store="sqlite:///shared.db") on one machine, or Server(store="redis://localhost:6379/0")',
        )


def _audit_file(server: SharingServer) -> str:
    """The file that this server writes its audit log to; empty if there is none."""
    from defserve.stores.audit.stored import is_store

    mgp: Any = next((extension for extension in server.composition.extensions if extension.name == "mgp"), None)
    given: Any = mgp.options.audit if mgp is not None else ()
    sinks: Sequence[Any] = given if is_array(given) else [given]
    return next((str(sink) for sink in sinks if isinstance(sink, str | Path) and not is_store(str(sink))), "")


def _kept_in_memory(server: SharingServer) -> Iterator[str]:
    from defserve.stores.memory import is_in_memory

    for extension in server.composition.extensions:
        if extension.name == "tasks" and (server.store is None or is_in_memory(server.store)):
            yield "tasks"
        states: Any = getattr(extension, "declared_states", list)
        if any(is_in_memory(state.store) for state in states()):
            yield "state"
