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
from defserve.inspector.era_connection import BuildNews, InspectionTarget
from defserve.inspector.inspection import ERA_NAMES
from defserve.inspector.kernels import KernelControl
from defserve.inspector.page_server import WebOptions, run_inspector
from defserve.inspector.session_files import SavedSession, make_session_target
from defserve.inspector.state_trees import make_state_finder, open_states_at
from defserve.inspector.target_process import TargetProcess, find_audit_log, find_state_section
from defserve.serve.lifespans import connect_in_memory
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


def make_dev_inspector(options: Namespace, build: BuildNews | None = None) -> RunCompanion:
    """The inspector of a server that runs beside it, at an address, and is replaced from time to time.

    `build` tells it why a new version does not start.
    """
    web = web_options(options)

    async def run_beside(address: str, ending: asyncio.Future[int]) -> int:
        reached = Namespace(era=None, token=None, header=[], verbose=False)
        there = make_inspector_target(ServerTarget(address=address), [address], reached)
        beside = replace(there, tracebacks=IN_TERMINAL, build=build)
        return await _run(beside, web, options.store, ending)

    return run_beside


def web_options(options: Namespace) -> WebOptions:
    """Raises UsageError for a port that does not exist."""
    if not 0 <= options.port <= 65535:
        raise UsageError(f"there is no port {options.port}", fix="use one from 1024 to 65535, or leave --port out")
    return WebOptions(options.port, not options.no_browser)


def make_inspector_target(target: ServerTarget, words: Sequence[str], options: Namespace) -> InspectionTarget:
    """The same server, for the inspector."""

    server = target.server
    process = TargetProcess(target.code, is_package=target.is_package) if target.code else None

    @asynccontextmanager
    async def link() -> AsyncGenerator[ClientLink]:
        if server is not None:
            async with connect_in_memory(server.composition) as peer:
                yield peer
        else:
            yield await open_target_link(target, options)

    kernel_process = os.getpid() if server is not None else target.process
    section = find_state_section(server) if server is not None else None
    return InspectionTarget(
        target.address or shlex.join(target.command) or " ".join(words) or target.code,
        tuple(words) or (target.code,),
        process.open_link if process is not None else link,
        options.era or "",
        stored=process.find_state if process is not None else make_state_finder(section) if section else None,
        # The kernel of this user: the one in this process, or the one that runs.
        kernel=KernelControl(target.kernel, kernel_process) if target.kernel is not None else None,
        audit=None if server is None else lambda: find_audit_log(server),
        sign_in_at=_sign_in_at(target, options),
        tracebacks=_tracebacks(target, options),
        server=server,
        process=process,
        starts=process is not None or bool(target.command),
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
    return IN_TERMINAL if target.server is not None or target.code or options.verbose else WITH_VERBOSE
