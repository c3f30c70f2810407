"""The server of a command line as the inspector takes it, and the inspector run until a signal comes."""

from __future__ import annotations

import asyncio
import os
import shlex
from argparse import Namespace
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Final

from defserve.cli.commands.state import require_existing_store
from defserve.cli.target import ServerTarget, parse_headers
from defserve.cli.target_connection import open_target_link
from defserve.client.link import ClientLink
from defserve.errors import UsageError
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import ERA_NAMES
from defserve.inspector.kernels import KernelControl
from defserve.inspector.page_server import WebOptions, run_inspector
from defserve.inspector.session_files import SavedSession, make_session_target
from defserve.inspector.state_trees import FindStoredState, make_state_finder, open_states_at
from defserve.protocols.mcpl.extension import MCPL
from defserve.protocols.mgp.audit import ReadableAuditLog, find_readable_log
from defserve.protocols.mgp.extension import MGP
from defserve.server.server import Server
from defserve.tooling.devserver.client_relay import RunCompanion, make_stop_future

IN_TERMINAL: Final = "The traceback is in the terminal where the inspector runs."
WITH_VERBOSE: Final = "With defserve inspect -v, the traceback is in the terminal where the inspector runs."


def inspect_in_browser(target: ServerTarget, words: Sequence[str], options: Namespace) -> int:
    """Open the inspector, and return the exit code when a signal has ended it. `words` name the server."""
    if options.era not in (None, *ERA_NAMES):
        raise UsageError(f"--web cannot begin with {options.era!r}", fix=f"use --era {' or --era '.join(ERA_NAMES)}")
    return asyncio.run(_run(make_inspector_target(target, words, options), web_options(options), options.store))


def inspect_session_in_browser(session: SavedSession, options: Namespace) -> int:
    """Open the inspector on a saved session, and return the exit code when a signal has ended it."""
    if options.store is not None:
        raise UsageError("a saved session has its checkpoints in its file", fix="leave --store out")
    return asyncio.run(_run(make_session_target(session), web_options(options), None))


async def _run(
    target: InspectionTarget, options: WebOptions, store: str | None, ending: asyncio.Future[int] | None = None
) -> int:
    """Inspect until `ending`, or a signal. A store that is given is read too; raises UsageError if it is not there."""
    async with nullcontext(target.stored) if store is None else open_states_at(require_existing_store(store)) as stored:
        return await run_inspector(replace(target, stored=stored), options, ending or make_stop_future())


def make_dev_inspector(options: Namespace) -> RunCompanion:
    """The inspector of a server that runs beside it, at an address, and is replaced from time to time."""
    web = web_options(options)

    async def run_beside(address: str, ending: asyncio.Future[int]) -> int:
        reached = Namespace(era=None, token=None, header=[], verbose=False)
        beside = replace(
            make_inspector_target(ServerTarget(address=address), [address], reached), tracebacks=IN_TERMINAL
        )
        return await _run(beside, web, options.store, ending)

    return run_beside


def web_options(options: Namespace) -> WebOptions:
    """Raises UsageError for a port that does not exist."""
    if not 0 <= options.port <= 65535:
        raise UsageError(f"there is no port {options.port}", fix="use one from 1024 to 65535, or leave --port out")
    return WebOptions(options.port, not options.no_browser)


def make_inspector_target(target: ServerTarget, words: Sequence[str], options: Namespace) -> InspectionTarget:
    """The same server, for the inspector."""

    @asynccontextmanager
    async def link() -> AsyncGenerator[ClientLink]:
        if target.server is None:
            yield await open_target_link(target, options)
            return
        from defserve.serve.lifespans import connect_in_memory

        async with connect_in_memory(target.server.composition) as peer:
            yield peer

    address = target.address or shlex.join(target.command) or " ".join(words)
    server = target.server
    process = os.getpid() if server is not None else target.process
    return InspectionTarget(
        address,
        tuple(words),
        link,
        options.era or "",
        stored=_find_states(server),
        # The kernel of this user: the one in this process, or the one that runs.
        kernel=KernelControl(target.kernel, process) if target.kernel is not None else None,
        audit=lambda: _find_audit_log(server),
        sign_in_at=_sign_in_at(target, options),
        tracebacks=_tracebacks(target, options),
        server=server,
    )


def _sign_in_at(target: ServerTarget, options: Namespace) -> str:
    """Where a person can sign in: at a server over HTTP, for which no credentials were given."""
    given = {name.lower() for name in (*target.headers, *parse_headers(options.header))}
    is_open = options.token is None and "authorization" not in given
    return target.address if is_open and target.address.startswith(("http://", "https://")) else ""


def _tracebacks(target: ServerTarget, options: Namespace) -> str:
    """Where a person finds the tracebacks of the server. Those at another address are out of reach."""
    if target.address:
        return ""
    return IN_TERMINAL if target.server is not None or options.verbose else WITH_VERBOSE


def _find_states(server: Server | None) -> FindStoredState | None:
    """The states of a server in this process, which the inspector may read where they are kept."""
    live = next((each for each in server.extensions if isinstance(each, MCPL)), None) if server is not None else None
    state = MCPL.state.get_existing_section(live) if live is not None else None
    return make_state_finder(state) if state is not None else None


def _find_audit_log(server: Server | None) -> ReadableAuditLog | None:
    """The audit log of a server in this process, if it is one that can be read again."""
    guards = (each for each in server.extensions if isinstance(each, MGP)) if server is not None else ()
    return next((found for each in guards if (found := find_readable_log(each.audit.sinks)) is not None), None)
