"""`Server.run(workers=…)`: this process becomes the supervisor, or serves as one of its workers."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from defserve.auth.bearer_tokens import check_verifier_settings
from defserve.base.redaction import get_logger
from defserve.core.json_values import is_array
from defserve.errors import UsageError
from defserve.serve.address import DEFAULT_PORTS_BY_SCHEME, Address
from defserve.serve.connection import INTERRUPTED_EXIT_CODE
from defserve.serve.network import resolve_bound_address, run_listener
from defserve.serve.session_opener import SessionOpener
from defserve.serve.sockets import bind_sockets
from defserve.server import web
from defserve.server.logs import JsonLogFormatter, NonBlockingLogHandler, add_worker_number_to_logs
from defserve.server.serving import explain_failed_lifespan
from defserve.server.workers.supervisor import Supervisor, SupervisorTiming, WorkerGroupPlan, format_worker_count
from defserve.server.workers.worker import (
    Worker,
    WorkerGroupSecrets,
    WorkerMembership,
    join_worker_group,
    read_worker_membership,
)

if TYPE_CHECKING:
    from defserve.auth import Auth
    from defserve.server.decorators import WebFields
    from defserve.server.server import Server


# -- What a server must share before several processes can serve it.


MAX_WORKERS: Final = 256


def worker_count(wanted: int | str) -> int:
    """How many workers `8`, `"8"` or `"auto"` are. Raises UsageError."""
    if wanted == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(ValueError):
        if 1 <= (count := int(wanted)) <= MAX_WORKERS:
            return count
    raise UsageError(f"there cannot be {wanted!r} workers", fix=f"give a number from 1 to {MAX_WORKERS}, or auto")


def address_of_group(on: str) -> Address:
    """Where a group serves. Raises UsageError if only one process can serve there."""
    if os.name != "posix":
        raise UsageError("workers cannot share a socket on this system", fix="leave out workers, or use Linux or macOS")
    if on.partition(":")[0] not in (*DEFAULT_PORTS_BY_SCHEME, "unix"):
        raise UsageError(
            f"{on!r} has one client, so it has one process", fix="serve workers on http://127.0.0.1:8000/mcp"
        )
    return Address.parse(on, "/mcp")


def supervise(
    address: Address,
    count: int,
    *,
    local_token: bool = False,
    log_json: bool = False,
    command: Sequence[str] = (),
    timing: SupervisorTiming | None = None,
) -> int:
    """Serve an address with so many workers until a signal ends it, and return the exit code.

    Each worker is started with `command`; without one, as this process was.
    """
    with bind_sockets(address) as sockets, _local_key(sockets, wanted=local_token) as key:
        plan = WorkerGroupPlan(
            tuple(command) or _own_command(),
            count,
            tuple(one.fileno() for one in sockets),
            WorkerGroupSecrets(key, secrets.token_urlsafe(32)),
        )
        return asyncio.run(_supervise(plan, str(resolve_bound_address(address, sockets[0])), _teller(log_json), timing))


async def _supervise(
    plan: WorkerGroupPlan, where: str, say: Callable[[str], None], timing: SupervisorTiming | None
) -> int:
    supervisor = Supervisor(plan, say, timing)
    with _signals(supervisor):
        return await supervisor.run(lambda: say(f"serving on {where} with {format_worker_count(plan.count)}"))


@contextmanager
def _signals(supervisor: Supervisor) -> Generator[None]:
    loop, had_terminal = asyncio.get_running_loop(), _has_terminal()

    def hang_up() -> None:
        # A terminal that was closed says the same as somebody who wants a reload.
        if had_terminal and not _has_terminal():
            supervisor.stop(0)
        else:
            supervisor.reload()

    actions = {
        signal.SIGTERM: partial(supervisor.stop, 0),
        signal.SIGINT: partial(supervisor.stop, INTERRUPTED_EXIT_CODE),
        signal.SIGHUP: hang_up,
    }
    for number, action in actions.items():
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in actions:
            loop.remove_signal_handler(number)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextmanager
def _local_key(sockets: Any, *, wanted: bool) -> Generator[str | None]:
    if not wanted:
        yield None
        return
    from defserve.auth.local_token import publish_local_key

    with publish_local_key(web.list_bound_addresses(sockets)) as key:
        yield key


def _own_command() -> tuple[str, ...]:
    """What started this process. Raises UsageError if that cannot be done again."""
    arguments = sys.orig_argv[1:]
    if not arguments or arguments[-1] == "-" or hasattr(sys, "ps1"):
        raise UsageError("workers load the server from a file, and this server isn't in one", fix="save it: server.py")
    return (sys.executable, *arguments)


def _teller(log_json: bool) -> Callable[[str], None]:
    """Prints lines. One that nobody reads is left out: whoever keeps the workers must not wait."""
    # The log of this process belongs to the author, so it is not set up here.
    handler = NonBlockingLogHandler()
    handler.setFormatter(JsonLogFormatter() if log_json else None)
    name = get_logger("workers").name
    return lambda text: handler.emit(logging.LogRecord(name, logging.INFO, "", 0, text, None, None))


def serve_worker_group(server: Server, on: str, workers: int | str, options: WebFields, *, log_json: bool) -> int:
    """Serve with several processes: supervise them, or be one of them. Returns the exit code."""
    address, count = address_of_group(on), worker_count(workers)
    check_sharing(server, count, options)
    if (member := read_worker_membership()) is not None:
        return serve_as_worker(server, address, member, options, log_json=log_json)
    if server.auth is not None:
        check_verifier_settings(server.auth.verifier)
    return supervise(address, count, local_token=options.get("local_token", False), log_json=log_json)


def supervise_unless_worker(on: str, workers: str, *, local_token: bool, log_json: bool) -> int | None:
    """Supervise workers that load the server themselves, and return the exit code. None: this process is a worker."""
    if read_worker_membership() is not None:
        return None
    return supervise(address_of_group(on), worker_count(workers), local_token=local_token, log_json=log_json)


def serve_as_worker(
    server: Server, address: Address, member: WorkerMembership, options: WebFields, *, log_json: bool = False
) -> int:
    """Serve on the sockets of the group until the supervisor or a signal ends it. Returns the exit code."""
    add_worker_number_to_logs(member.number)
    try:
        control, group = join_worker_group(member)
    except EOFError:
        return 1
    server.mcp.secret.of_group = group.secret.encode()
    composition = server.composition
    provider = SessionOpener(composition)
    readiness = partial(web.check_readiness, composition, server.auth)
    worker = Worker(member, control, provider, partial(web.make_metrics_response, composition), readiness)
    app = web.make_http_app(provider, server.mcp, server.auth, options, address, group.key, worker)
    network = replace(web.make_network_options(options), started=worker.on_listening)
    if member.number == 1 and address.scheme != "unix":
        say = partial(web.announce_to_operator, composition, server.auth, _teller(log_json))
        network = replace(network, announce=say)
    sockets = [socket.socket(fileno=number) for number in member.sockets]
    with control, explain_failed_lifespan(server):
        return run_listener(app, address, network, composition.limits, provider, sockets)


def check_sharing(server: Server, count: int, options: WebFields) -> None:
    """Raises UsageError if several workers would not know what they need from one another."""
    if file := _audit_file(server):
        # Also for one worker: it and the one that replaces it run side by side for a while.
        raise UsageError(
            f"workers cannot share the audit log {file}: one process at a time writes to a file",
            fix='keep it in a store: Server(audit="sqlite:///audit.db"), "postgres://…" or "redis://…"',
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
            "clients that need no session (2026-07-28): --stateless (in code: stateless=True), "
            "for whom a store in Postgres is enough",
        )
    auth: Auth | None = getattr(server, "auth", None)
    if auth is not None and auth.kept_in_memory:
        raise UsageError(
            f"{count} workers cannot share {auth.kept_in_memory}, which are kept in the memory of one process",
            fix='name a store there: "sqlite:///shared.db" on one machine, "postgres://…" or "redis://…"',
        )
    for what in _iter_kept_in_memory(server):
        raise UsageError(
            f"{count} workers cannot share {what}, which this server keeps in the memory of one process",
            fix='give Server(store="sqlite:///shared.db") on one machine, Server(store="postgres://…"), or '
            'Server(store="redis://localhost:6379/0")',
        )


def _audit_file(server: Server) -> str:
    """The file that this server writes its audit log to; empty if there is none."""
    from defserve.stores.audit.stored_log import is_audit_store_address

    mgp: Any = next((extension for extension in server.composition.extensions if extension.name == "mgp"), None)
    given: Any = mgp.options.audit if mgp is not None else ()
    sinks: Sequence[Any] = given if is_array(given) else [given]
    return next(
        (str(sink) for sink in sinks if isinstance(sink, str | Path) and not is_audit_store_address(str(sink))), ""
    )


def _iter_kept_in_memory(server: Server) -> Iterator[str]:
    from defserve.stores.store import is_in_memory

    for extension in server.composition.extensions:
        if extension.name == "tasks" and (server.store is None or is_in_memory(server.store)):
            yield "tasks"
        states: Any = getattr(extension, "list_states", list)
        if any(is_in_memory(state.store) for state in states()):
            yield "state"
