"""`defserve inspect` and `defserve list`: a server at a glance, what it offers, and the inspector."""

from __future__ import annotations

import asyncio
import os
import shlex
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from defserve.cli.content import TOKEN_COST_NOTES, format_item_lines, get_first_description_line
from defserve.cli.parser import WEB_OPTIONS, CommandArgument, CommandParser, make_flag
from defserve.cli.screen import LISTING_STEP, ProgressDisplay, show_stderr, show_stdout
from defserve.cli.screen_blocks import JsonBlock, ScreenBlock, StyledLine, Table, format_count
from defserve.cli.target import (
    COMMAND_HELP,
    TARGET_FORMS_HELP,
    TARGET_HELP,
    ServerTarget,
    parse_headers,
    redirect_stdout_to_stderr,
    resolve_only_target,
    split_server_command,
)
from defserve.cli.target_connection import (
    CONNECTION_OPTIONS,
    connect_target,
    explain_unlisted_tools,
    find_spoken_versions,
    format_effect_words,
    list_disconnected_servers,
    list_tool_dangers,
    list_tool_effects,
    load_target_listing,
    open_target_link,
    suppress_repeated_logs,
)
from defserve.client.replies import filter_strings, object_or_empty
from defserve.client.targets import InstalledServer, find_installed_servers
from defserve.core.json_values import is_array, is_mapping
from defserve.errors import UsageError
from defserve.protocols.mgp.terms import MGP_SECTIONS_BY_NAME
from defserve.tooling.client_settings import MCP_JSON_NAME, list_configured_servers
from defserve.tooling.listing import (
    LIST_FETCHERS,
    LISTING_OFFER,
    ServerListing,
    check_listed_items,
    estimate_definition_tokens,
    fetch_lists,
    to_snapshot,
)

# The inspector is imported only where it is opened: `defserve list` needs nothing of it.
if TYPE_CHECKING:
    from defserve.client.link import ClientLink
    from defserve.inspector.era_connection import InspectionTarget, ReloadStatus
    from defserve.inspector.page_server import InspectorWebOptions
    from defserve.inspector.session_files import SavedSession
    from defserve.tooling.devserver.client_relay import RunCompanion

EXAMPLES: Final = """  defserve inspect server.py
  defserve inspect server.py --web                    a page in the browser
  defserve inspect server.py --json
  defserve inspect http://127.0.0.1:8000/mcp
  defserve inspect -- python server.py
  defserve inspect .mcp.json:weather
  defserve inspect shop.defsession --web              a session that the inspector saved
"""


SESSION_SUFFIX: Final = ".defsession"


def run_inspect(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    parser = CommandParser(
        "defserve inspect", "Show a server at a glance: what it speaks, offers, may do and costs.", EXAMPLES
    )
    options = parser.parse_options(
        before,
        CommandArgument("target", nargs="*", help=TARGET_HELP),
        make_flag("--json", help="print what goes over the wire: the initialize result and the lists"),
        *CONNECTION_OPTIONS,
        *WEB_OPTIONS,
    )
    if len(options.target) == 1 and options.target[0].endswith(SESSION_SUFFIX):
        return _inspect_session(Path(options.target[0]), options)
    words = words_of(options.target, options.module, command)
    with redirect_stdout_to_stderr(), ProgressDisplay(LISTING_STEP):
        target = resolve_only_target(options.target, options.module, command, is_loaded=not options.web)
    if options.web:
        return inspect_in_browser(target, words, options)
    with redirect_stdout_to_stderr():
        listed = load_target_listing(target, options)
        spoken = [] if options.json else asyncio.run(find_spoken_versions(target, options))
    show_stdout(*([JsonBlock(to_snapshot(listed))] if options.json else iter_listing_lines(listed, spoken)))
    show_stderr(*(f"note: {note}" for note in listed.notes))
    return 0


def _inspect_session(path: Path, options: Namespace) -> int:
    """Show a saved session: in the browser, or at a glance. Raises UsageError if it cannot be opened."""
    from defserve.inspector.session_files import read_session_file

    session = read_session_file(path)
    if options.web:
        return inspect_session_in_browser(session, options)
    try:
        listed = next(iter(session.listings.values()), ServerListing({}, [], [], [], []))
        for kind, items in zip(LIST_FETCHERS, listed[1:5], strict=True):
            check_listed_items(kind, items)
        figures = session.summarize()
        if options.json:
            show_stdout(JsonBlock({"session": figures, **to_snapshot(listed)}))
            return 0
        spoken = [str(each.initialize.get("protocolVersion")) for each in session.listings.values()]
        show_stdout(*iter_listing_lines(listed, spoken), *_session_lines(path, figures))
    finally:
        session.recorder.close()
    return 0


def _session_lines(path: Path, figures: Mapping[str, Any]) -> Iterator[ScreenBlock]:
    saved = datetime.fromtimestamp(figures["time"]).astimezone()
    yield from _heading(f"Session, saved {saved:%Y-%m-%d %H:%M} by {figures['maker'] or 'an unknown program'}")
    counted = [
        format_count(figures["messages"], "message"),
        format_count(sum(tool["calls"] for tool in figures["tools"]), "call"),
        format_count(figures["errors"], "error"),
        format_count(sum(tree["checkpoints"] for tree in figures["trees"]), "checkpoint"),
    ]
    yield StyledLine(f"  {', '.join(counted)}")
    if figures["tools"]:
        rows = [
            (f"  {tool['tool']}", format_count(tool["calls"], "call"), tool["errors"] or "", f"{tool['median']:.1f}")
            for tool in figures["tools"]
        ]
        yield StyledLine()
        yield Table(("  tool", "calls", "failed", "median ms"), rows, fit=("  tool",), right=("failed", "median ms"))
    yield StyledLine()
    yield StyledLine(f"See all of it: defserve inspect {shlex.quote(str(path))} --web")


def words_of(named: list[str], module: str | None, command: list[str] | None) -> list[str]:
    """How another command names the same server."""
    if command is not None:
        return ["--", *command]
    return ["-m", module] if module is not None else list(named)


def iter_listing_lines(listed: ServerListing, spoken: list[str]) -> Iterator[StyledLine]:
    """A server for a terminal, line by line."""
    info = listed.info
    title = " ".join(str(info[key]) for key in ("name", "version") if info.get(key))
    yield StyledLine((title or "unnamed server", "heading"))
    for text in (info.get("title"), info.get("description"), listed.initialize.get("instructions")):
        if text:
            yield StyledLine(f"  {str(text).strip().partition(chr(10))[0]}", hang=0)
    yield from _heading("Speaks")
    yield _make_protocol_line("MCP", ", ".join(spoken) or str(listed.initialize.get("protocolVersion")))
    yield from _extensions(listed)
    yield from _live(listed.mcpl)
    tokens = sum(map(estimate_definition_tokens, listed.tools))
    cost = f"about {tokens:,} tokens {TOKEN_COST_NOTES[listed.is_searched]}: characters/4"
    yield from _heading(f"Tools ({len(listed.tools)}, {cost})")
    for tool in listed.tools:
        yield from format_item_lines(
            tool, (f"  ~{estimate_definition_tokens(tool):,}", "faint"), *format_effect_words(list_tool_effects(tool))
        )
    for heading, items in (
        ("Resources", listed.resources),
        ("Templates", listed.templates),
        ("Prompts", listed.prompts),
    ):
        yield from _items(f"{heading} ({len(items)})", items)


def _extensions(listed: ServerListing) -> Iterator[StyledLine]:
    mgp, mcpl = listed.mgp, listed.mcpl
    if mgp:
        # A name of several sections would only repeat them.
        named = filter_strings(mgp.get("extensions"))
        offered = [name for name in named if MGP_SECTIONS_BY_NAME.get(name) in (None, {name})]
        needed = ", ".join(filter_strings(mgp.get("permissions_required"))) or "nothing"
        yield _make_protocol_line("MGP", f"{mgp.get('version')}: {', '.join(offered)}")
        yield StyledLine(f"        needs {needed}; trust level {mgp.get('trust_level', 'not declared')}", hang=0)
    if mcpl:
        other = [name for name, value in mcpl.items() if value and name not in ("version", "featureSets")]
        yield _make_protocol_line("MCPL", f"{mcpl.get('version')}: {', '.join(other) or 'tools'}")


def _make_protocol_line(protocol: str, about: str) -> StyledLine:
    return StyledLine("  ", (f"{protocol:4}", "title"), f"  {about}", hang=6)


def _heading(text: str) -> Iterator[StyledLine]:
    yield StyledLine()
    yield StyledLine((text, "heading"), hang=0)


def _live(mcpl: Mapping[str, Any]) -> Iterator[StyledLine]:
    sets: Any = mcpl.get("featureSets") or {}
    by_name = {str(object_or_empty(one).get("name")): one for one in sets} if is_array(sets) else object_or_empty(sets)
    named = {name: object_or_empty(one) for name, one in by_name.items()}
    if named:
        yield from _heading(f"Feature sets ({len(named)})")
    for name, one in named.items():
        flags = [flag for flag in ("scoped", "rollback") if one.get(flag)]
        told = ", ".join([*filter_strings(one.get("uses")), *flags])
        yield StyledLine("  ", (str(name), "title"), (f"  [{told}]", "faint"), hang=4)
        yield StyledLine(f"      {get_first_description_line(one)}", hang=0)
    if channels := mcpl.get("channels"):
        yield from _heading("Channels")
        told = ", ".join(name for name, value in channels.items() if value) if is_mapping(channels) else ""
        yield StyledLine(f"  {told or 'any type'}")


def _items(heading: str, items: list[dict[str, Any]]) -> Iterator[StyledLine]:
    if not items:
        return
    yield from _heading(heading)
    for item in items:
        yield from format_item_lines(item)


# -- `defserve list`: what a server offers, for people or as JSON.


LIST_EXAMPLES: Final = """  defserve list server.py
  defserve list -m shop --json
  defserve list http://127.0.0.1:8000/mcp
  defserve list -- python server.py --flag
  defserve list weather                    an installed server, or one in .mcp.json
  defserve list                            the names you can use
"""
ALONE: Final = "or nothing, for the names you can use (if there are none: the server of the project)"


def run_list(argv: list[str]) -> int:
    before, command = split_server_command(argv)
    parser = CommandParser("defserve list", "Show the tools, resources and prompts of a server.", LIST_EXAMPLES)
    options = parser.parse_options(
        before,
        CommandArgument("target", nargs="*", help=f"{TARGET_FORMS_HELP}; {ALONE}, or with {COMMAND_HELP}"),
        make_flag("--json", help="print the server's answers as JSON"),
        *CONNECTION_OPTIONS,
    )
    words: list[str] = options.target
    if not (words or options.module or command) and (
        servers := [*find_installed_servers(), *_list_configured_servers()]
    ):
        show_stdout(*([JsonBlock([each._asdict() for each in servers])] if options.json else servers_page(servers)))
        return 0
    with (
        redirect_stdout_to_stderr(),
        nullcontext() if options.verbose else suppress_repeated_logs(),
        ProgressDisplay(LISTING_STEP),
    ):
        found = asyncio.run(inventory(resolve_only_target(words, options.module, command), options))
    show_stdout(*([JsonBlock(found)] if options.json else inventory_page(found)))
    show_stderr(*(f"note: {note}" for note in found.get("notes", ())))
    return 0


def _list_configured_servers() -> list[InstalledServer]:
    """The servers of the nearest `.mcp.json`, which belong to no distribution."""
    return [InstalledServer(name, how, "", "") for name, how in list_configured_servers().items()]


def servers_page(servers: list[InstalledServer]) -> Iterator[ScreenBlock]:
    """The servers that have a name, for a terminal."""
    width = max(len(each.name) for each in servers)
    rows: dict[str, list[StyledLine]] = {}
    for name, target, distribution, version in servers:
        told = f"{distribution} {version}  {target}" if distribution else target
        rows.setdefault("Installed servers" if distribution else f"Servers in {MCP_JSON_NAME}", []).append(
            StyledLine("  ", (f"{name:{width}}", "title"), f"  {told}", hang=width + 2)
        )
    for heading, lines in rows.items():
        yield StyledLine((heading, "heading"))
        yield from lines


async def inventory(target: ServerTarget, options: Namespace) -> dict[str, Any]:
    """Everything that the server lists, and what it says about itself."""
    async with connect_target(target, options, offer=LISTING_OFFER) as client:
        about = {"server": client.server_info, "version": client.version, "instructions": client.instructions}
        notes: list[str] = []
        found = about | await fetch_lists(client, notes)
        # Others are not asked twice: only what runs here is still being started.
        absent = await list_disconnected_servers(client) if target.server is not None else {}
        if not any(found[heading] for heading in LIST_FETCHERS) and explain_unlisted_tools(target, options, ""):
            notes.append(
                "a server shows only what your token may use; whoever runs it sees what it lacks with defserve why"
            )
        return found | ({"notConnected": absent} if absent else {}) | ({"notes": notes} if notes else {})


def inventory_page(found: dict[str, Any]) -> Iterator[StyledLine]:
    """The inventory for a terminal, line by line."""
    server = found["server"]
    title = " ".join(str(server[key]) for key in ("name", "version") if server.get(key))
    yield StyledLine((title or "unnamed server", "heading"), (f" (protocol {found['version']})", "faint"))
    for heading in LIST_FETCHERS:
        if not found[heading]:
            continue
        yield StyledLine()
        yield StyledLine((heading.capitalize(), "heading"))
        for item in found[heading]:
            yield from format_item_lines(
                item, *(format_effect_words(list_tool_dangers(item)) if heading == "tools" else ())
            )
    absent: dict[str, str] = found.get("notConnected", {})
    if absent:
        yield StyledLine()
        yield StyledLine(("Not connected", "heading"))
        for name, note in absent.items():
            yield StyledLine("  ", (name, "title"), f"  {note}", hang=4)
    elif not any(found[heading] for heading in LIST_FETCHERS):
        yield StyledLine("It shows you no tools, resources or prompts.")


# -- The server of a command line as the inspector takes it, and the inspector run until a signal comes.


IN_TERMINAL: Final = "The traceback is in the terminal where the inspector runs."
WITH_VERBOSE: Final = "With defserve inspect -v, the traceback is in the terminal where the inspector runs."


def inspect_in_browser(target: ServerTarget, words: Sequence[str], options: Namespace) -> int:
    """Open the inspector, and return the exit code when a signal has ended it. `words` name the server."""
    from defserve.inspector.inspection import ERA_NAMES

    if options.era not in (None, *ERA_NAMES):
        raise UsageError(f"--web cannot begin with {options.era!r}", fix=f"use --era {' or --era '.join(ERA_NAMES)}")
    return asyncio.run(_run(make_inspector_target(target, words, options), web_options(options), options.store))


def inspect_session_in_browser(session: SavedSession, options: Namespace) -> int:
    """Open the inspector on a saved session, and return the exit code when a signal has ended it."""
    from defserve.inspector.session_files import make_session_target

    if options.store is not None:
        raise UsageError("a saved session has its checkpoints in its file", fix="leave --store out")
    return asyncio.run(_run(make_session_target(session), web_options(options), None))


async def _run(
    target: InspectionTarget, options: InspectorWebOptions, store: str | None, ending: asyncio.Future[int] | None = None
) -> int:
    """Inspect until `ending`, or a signal. A store that is given is read too; raises UsageError if it is not there."""
    from defserve.cli.commands.state import require_existing_store
    from defserve.inspector.page_server import run_inspector
    from defserve.inspector.state_trees import open_states_at
    from defserve.tooling.devserver.client_relay import make_stop_future

    async with nullcontext(target.stored) if store is None else open_states_at(require_existing_store(store)) as stored:
        return await run_inspector(replace(target, stored=stored), options, ending or make_stop_future())


def make_dev_inspector(options: Namespace, build: ReloadStatus | None = None) -> RunCompanion:
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


def web_options(options: Namespace) -> InspectorWebOptions:
    """Raises UsageError for a port that does not exist."""
    from defserve.inspector.page_server import InspectorWebOptions

    if not 0 <= options.port <= 65535:
        raise UsageError(f"there is no port {options.port}", fix="use one from 1024 to 65535, or leave --port out")
    return InspectorWebOptions(options.port, not options.no_browser)


def make_inspector_target(target: ServerTarget, words: Sequence[str], options: Namespace) -> InspectionTarget:
    """The same server, for the inspector."""
    from defserve.inspector.era_connection import InspectionTarget
    from defserve.inspector.kernels import KernelOverSocket
    from defserve.inspector.state_trees import make_state_finder
    from defserve.inspector.target_process import TargetProcess, find_audit_log, find_state_section
    from defserve.serve.lifespans import connect_in_memory

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
        kernel=KernelOverSocket(target.kernel, kernel_process) if target.kernel is not None else None,
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
