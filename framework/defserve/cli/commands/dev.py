"""`defserve dev`: run a server and reload it when its code changes; clients stay connected.

At a terminal it shows what is served and where, one line for each change, and listens to keys. Elsewhere it writes
plain lines to stderr. Standard output belongs to clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import strftime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from defserve.auth.oauth import is_loopback
from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import redact, redact_text
from defserve.cli.keyboard import Keyboard, can_read_keys
from defserve.cli.parser import WEB_OPTIONS, CommandArgument, CommandParser, parse_seconds
from defserve.cli.screen import format_fact, format_start_banner, format_time, format_tool_count, show_stderr
from defserve.cli.screen_blocks import StyledLine, StyledText, format_count
from defserve.cli.target import ServerTarget, require_code_target
from defserve.client.targets import is_server_address
from defserve.core.json_values import is_object
from defserve.errors import DefserveError, UsageError
from defserve.serve.address import DEFAULT_PORTS_BY_SCHEME, Address
from defserve.serve.network import print_address
from defserve.server.command_line import add_serving_options, read_serving_options
from defserve.tooling.devserver.handover import ServePlan, ServerSummary, StartProblem

if TYPE_CHECKING:
    from defserve.inspector.era_connection import ReloadStatus
    from defserve.inspector.page_server import RunningInspector

GRACE: Final = 30.0
ABOUT: Final = """Run a server, and start it again whenever one of its files changes.

Clients stay connected and are told that the lists have changed. The old server finishes running calls. If the new
server does not start, the error is shown and the old one keeps serving.

At a terminal it serves on a loopback address, unless --on says otherwise, and listens to keys: h shows them. Without a
terminal it serves on standard input and output, for a client that starts it.

On a loopback address --local-token is on: defserve's own commands connect as you. Everyone else is unauthenticated."""
EXAMPLES: Final = """  defserve dev server.py
  defserve dev server.py --on http://127.0.0.1:8000/mcp --log-level info
  defserve dev shop.tools:catalogue --watch prices.toml
  defserve dev server.py --web                        and open the inspector in the browser
"""
PORT: Final = 8000
"""Where it serves at a terminal, if nobody else does: clients keep the address."""


def run_dev(argv: list[str]) -> int:
    parser = CommandParser("defserve dev", ABOUT, EXAMPLES)
    parser.add_argument("target", nargs="?", help="server.py, server.py:name or module:name")
    add_serving_options(parser)
    options = parser.parse_options(
        argv,
        CommandArgument(
            "--watch", metavar="PATH", action="append", default=[], help="also watch this file or folder; repeatable"
        ),
        CommandArgument(
            "--grace",
            metavar="SECONDS",
            type=parse_seconds,
            default=GRACE,
            help="how long running calls may take after a change (default: %(default)g)",
        ),
        *WEB_OPTIONS,
    )
    if not options.target:
        raise UsageError("dev needs one server", fix="defserve dev server.py, or defserve dev shop.tools:catalogue")
    has_keys = can_read_keys() and sys.stderr.isatty()
    if options.on.startswith("stdio:") and (options.web or (has_keys and _is_address_free(argv))):
        # Standard input and output belong to the person who reads and types.
        options.on = choose_address()
    has_keys = has_keys and not options.on.startswith("stdio:")
    if options.local_token is None and os.name == "posix":
        address = Address.parse(options.on, "/mcp")
        options.local_token = (address.scheme in DEFAULT_PORTS_BY_SCHEME and is_loopback(address.host)) or None
    if is_server_address(options.target):
        raise UsageError(
            f"{options.target!r} is an address; only code can be served", fix="name server.py or module:name"
        )
    require_code_target(options.target)
    if missing := [path for path in options.watch if not os.path.exists(path)]:
        raise UsageError(f"there is no {missing[0]!r} to watch", fix="check --watch; paths start in the current folder")
    return _serve(options, has_keys=has_keys)


def _is_address_free(argv: list[str]) -> bool:
    """Whether nobody said where to serve."""
    return not any(word == "--on" or word.startswith("--on=") for word in argv)


def choose_address() -> str:
    """The usual address, or one at another port if that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            return "http://127.0.0.1:0/mcp"
    return f"http://127.0.0.1:{PORT}/mcp"


def _serve(options: Namespace, *, has_keys: bool) -> int:
    from defserve.tooling.devserver.client_relay import run_dev_server_on_sockets, run_dev_server_on_stdio
    from defserve.tooling.devserver.reload_supervisor import WatchedFiles

    files = WatchedFiles([*first_files(options.target), *options.watch])
    plan = ServePlan(options.target, read_serving_options(options))
    if options.on.startswith("stdio:"):
        return run_dev_server_on_stdio(plan, files, options.grace, PlainConsole())
    if not has_keys:
        if not options.web:
            return run_dev_server_on_sockets(plan, files, options.grace, PlainConsole())
        from defserve.cli.commands.inspect import make_dev_inspector
        from defserve.inspector.era_connection import ReloadStatus

        build = ReloadStatus()
        return run_dev_server_on_sockets(
            plan, files, options.grace, PlainConsole(build), make_dev_inspector(options, build)
        )
    with TemporaryDirectory(prefix="defserve-dev-") as folder:
        last_call = Path(folder, "last-call")
        screen = DevScreen(options, last_call)
        plan = replace(plan, last_call=str(last_call), is_quiet=True)
        return run_dev_server_on_sockets(plan, files, options.grace, screen, screen.run_beside)


def first_files(target: str) -> list[str]:
    """What to watch until a child has reported its files. Raises UsageError for a file that does not exist."""
    path = target.rpartition(".py:")[0] + ".py" if ".py:" in target else target
    if not path.endswith(".py"):
        return [os.path.join(os.getcwd(), f"{path.partition(':')[0].partition('.')[0]}.py")]
    if not os.path.isfile(path):
        path = os.path.abspath(path)
        raise UsageError(f"there is no file {path!r}", fix="check the path; it starts in the current folder")
    return [path]


# -- What is shown: the start, one line for each change, and why a server does not start.


MAX_NAMES: Final = 5
MAX_PATHS: Final = 3
SIGNS: Final = (("+", "added"), ("~", "warning"), ("\N{MINUS SIGN}", "removed"))
STILL_SERVING: Final = "the old version is still serving"
WAITING: Final = "waiting for a change"


def format_dev_start(
    served: ServerSummary | None, target: str, address: str, link: str, seconds: float
) -> Iterator[StyledLine]:
    """What is served and where, as the first thing that a person sees. `link` leads to the inspector."""
    facts = [format_tool_count(served.tools, served.tokens)] if served is not None else []
    facts += [format_fact("address", address), *([format_fact("inspector", link)] if link else [])]
    name, version = (served.name, served.version) if served is not None else (target, "")
    yield from format_start_banner(name, version, f"ready in {format_time(seconds)}", facts)
    yield format_key_line()
    yield StyledLine()


def format_key_line() -> StyledLine:
    parts: list[StyledText] = []
    for key, (word, _) in KEYS.items():
        parts += ["  ", (key, "heading"), (f" {word}", "faint")]
    return StyledLine(*parts, hang=0)


def format_change(
    paths: list[str], before: ServerSummary | None, served: ServerSummary | None, seconds: float
) -> StyledLine:
    """`calc.py → +mul, 41 ms`."""
    more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
    parts: list[StyledText] = [(f"{', '.join(paths[:MAX_PATHS])}{more}", "name"), " → "] if paths else []
    parts += list(_list_changes(before, served)) or ["reloaded" if paths else "restarted"]
    return StyledLine(*parts, (f", {format_time(seconds)}", "faint"))


def _list_changes(before: ServerSummary | None, served: ServerSummary | None) -> Iterator[StyledText]:
    """The items that came, that are others now, and that have gone, with a sign each."""
    if before is None or served is None:
        return
    old, new = before.items, served.items
    kinds = (
        [name for name in new if name not in old],
        [name for name in new if name in old and old[name] != new[name]],
        [name for name in old if name not in new],
    )
    found = [(f"{sign}{name}", style) for (sign, style), names in zip(SIGNS, kinds, strict=True) for name in names]
    for number, change in enumerate(found[:MAX_NAMES]):
        yield " " if number else ""
        yield change
    if len(found) > MAX_NAMES:
        yield f" and {len(found) - MAX_NAMES} more"


def format_start_problem(problem: StartProblem, *, is_serving: bool) -> Iterator[StyledLine]:
    """Where it is, what it is, the lines that led there, and who serves meanwhile."""
    first, *rest = problem.text.splitlines() or [""]
    yield StyledLine((problem.where, "name"), "  " if problem.where else "", (first, "error"))
    for line in (*rest, *problem.lines):
        yield StyledLine(f"    {line}", hang=2)
    yield StyledLine((f"  {STILL_SERVING if is_serving else WAITING}", "good" if is_serving else "warning"))


def format_exit(code: int, *, restarts_in: float | None) -> StyledLine:
    how = f"signal {-code}" if code < 0 else f"code {code}"
    then = "it is started again" if restarts_in is not None else WAITING
    if restarts_in:
        then += f" in {restarts_in:g} s, or at a change"
    return StyledLine((f"the server ended by itself with {how}", "error"), f"; {then}")


def report_build(build: ReloadStatus | None, problem: StartProblem | None, *, is_serving: bool) -> None:
    """Tell the inspector, if there is one, why the newest version does not start; without a problem, that it serves."""
    if build is None:
        return
    if problem is None:
        build.clear_problem()
    else:
        build.report_problem(problem.where, problem.text, problem.lines, is_serving=is_serving)


def make_exit_problem(code: int) -> StartProblem:
    return StartProblem("", str(format_exit(code, restarts_in=None)).partition(";")[0], [])


class PlainConsole:
    """Lines on stderr for a log, each with the name of the command. Tracebacks were printed by the server's process."""

    def __init__(self, build: ReloadStatus | None = None) -> None:
        self._build = build
        self.address = ""
        self.wants_restart = asyncio.Event()

    def show_ready(self, served: ServerSummary | None, seconds: float) -> None:
        report_build(self._build, None, is_serving=True)
        if self.address:
            print_address(self.address)
        if served is not None:
            about = f"{served.name} {served.version}".strip()
            cost = f"{format_count(served.tools, 'tool')}, about {served.tokens:,} tokens"
            self._print(f"{about}: {cost}, ready in {format_time(seconds)}")

    def show_reload(
        self, paths: list[str], before: ServerSummary | None, served: ServerSummary | None, seconds: float
    ) -> None:
        report_build(self._build, None, is_serving=True)
        self._print(format_change(paths, before, served, seconds))

    def show_problem(self, problem: StartProblem, *, is_serving: bool) -> None:
        report_build(self._build, problem, is_serving=is_serving)
        where = f"{problem.where}: " if problem.where else ""
        then = STILL_SERVING if is_serving else WAITING
        self._print(f"{where}{problem.text.partition(chr(10))[0]}; {then}")

    def show_exit(self, code: int, *, restarts_in: float | None) -> None:
        report_build(self._build, make_exit_problem(code), is_serving=False)
        self._print(format_exit(code, restarts_in=restarts_in))

    def _print(self, text: str) -> None:
        print(StyledLine(f"defserve dev: {text}"), file=sys.stderr, flush=True)


# -- The terminal: what is shown there, and what each key does.


KEYS: Final = {
    "o": ("inspect", "open the inspector in the browser"),
    "r": ("restart", "restart the server"),
    "c": ("repeat", "repeat the last tool call"),
    "i": ("install", "show how to install the server in a client"),
    "q": ("quit", "stop the server, as Ctrl-C does"),
    "h": ("help", "show this help"),
}
END_KEYS: Final = ("\x03", "\x04")
MAX_CALL_LENGTH: Final = 200


class DevScreen:
    """Shows what happens to the server, and does what keys ask for. The inspector runs beside it."""

    def __init__(
        self, options: Namespace, last_call: Path, read_clock: Callable[[], str] = lambda: strftime("%H:%M:%S")
    ) -> None:
        self.address = ""
        self.wants_restart = asyncio.Event()
        self._options, self._last_call, self._read_clock = options, last_call, read_clock
        self._inspector: RunningInspector | None = None
        self._problem: tuple[StartProblem | None, bool] = None, True
        self._is_inspector_known = False
        self._ready: tuple[ServerSummary | None, float] | None = None
        self._tasks = BackgroundTasks()
        self._keyboard: Keyboard | None = None
        self._ending: asyncio.Future[int] | None = None

    # -- what happens to the server ------------------------------------------------------------------------

    def show_ready(self, served: ServerSummary | None, seconds: float) -> None:
        self._ready = served, seconds
        self._tell_inspector(None, True)
        self._show_start()

    def _show_start(self) -> None:
        """When the server serves and the link to the inspector is known."""
        if self._ready is None or not self._is_inspector_known:
            return
        served, seconds = self._ready
        link = self._inspector.url if self._inspector is not None else ""
        show_stderr(*format_dev_start(served, self._options.target, self.address, link, seconds))

    def show_reload(
        self, paths: list[str], before: ServerSummary | None, served: ServerSummary | None, seconds: float
    ) -> None:
        self._tell_inspector(None, True)
        self._show_event(format_change(paths, before, served, seconds))

    def show_problem(self, problem: StartProblem, *, is_serving: bool) -> None:
        self._tell_inspector(problem, is_serving)
        self._show_event(*format_start_problem(problem, is_serving=is_serving))

    def show_exit(self, code: int, *, restarts_in: float | None) -> None:
        self._tell_inspector(make_exit_problem(code), False)
        self._show_event(format_exit(code, restarts_in=restarts_in))

    def _tell_inspector(self, problem: StartProblem | None, is_serving: bool) -> None:
        """Now, or as soon as it is open."""
        self._problem = problem, is_serving
        if self._inspector is not None:
            report_build(self._inspector.inspection.build, problem, is_serving=is_serving)

    def _show_event(self, first: StyledLine, *more: StyledLine) -> None:
        clock = (f"  {self._read_clock()}  ", "faint")
        show_stderr(StyledLine(clock, *first.parts, hang=10), *(StyledLine(" " * 10, *line.parts) for line in more))

    # -- what a person wants -------------------------------------------------------------------------------

    async def run_beside(self, address: str, ending: asyncio.Future[int]) -> int:
        """Listen to keys until the end."""
        self._ending = ending
        async with AsyncExitStack() as stack:
            self._keyboard = stack.enter_context(Keyboard(self._press))
            stack.callback(self._tasks.cancel)
            if is_server_address(address):
                self._inspector = await self._open_inspector(stack, address)
                self._tell_inspector(*self._problem)
            self._is_inspector_known = True
            self._show_start()
            if self._options.web and not self._options.no_browser:
                await self._open_page()
            return await ending

    async def _open_inspector(self, stack: AsyncExitStack, address: str) -> RunningInspector:
        """The inspector of the server at this address, until `stack` is closed."""
        launch: Any = await asyncio.to_thread(import_module, "defserve.cli.commands.inspect")
        from defserve.cli.commands.state import require_existing_store
        from defserve.inspector.page_server import serve_inspector
        from defserve.inspector.state_trees import open_states_at

        reached = Namespace(era=None, token=None, header=[], verbose=False)
        target = launch.make_inspector_target(ServerTarget(address=address), [address], reached)
        target = replace(target, tracebacks=launch.IN_TERMINAL)
        if self._options.store is not None:
            states = open_states_at(require_existing_store(self._options.store))
            target = replace(target, stored=await stack.enter_async_context(states))
        return await stack.enter_async_context(serve_inspector(target, launch.web_options(self._options).port))

    def _press(self, key: str) -> None:
        if key == "\n":  # as at a shell: a gap between what was and what comes
            show_stderr("")
        elif key in ("q", *END_KEYS) and self._ending is not None and not self._ending.done():
            self._ending.set_result(0)
        elif key == "r":
            self.wants_restart.set()
        elif key in ("i", "h"):
            show_stderr("", *(format_install(self._options.target) if key == "i" else format_help()), "")
        elif key in ("o", "c") and not self._tasks:
            self._tasks.start(self._open_page() if key == "o" else self._repeat_call())

    async def _open_page(self) -> None:
        import webbrowser

        if self._inspector is None:
            show_stderr("  the inspector needs an address of http:// or ws://")
        elif not await asyncio.to_thread(webbrowser.open, self._inspector.ticket_url()):
            show_stderr("  there is no browser here; open this address:", f"  {self._inspector.url}")

    async def _repeat_call(self) -> None:
        last = read_last_call(self._last_call)
        if last is None:
            example = f"defserve call {self.address} TOOL key=value"
            show_stderr("  no tool was called yet; here is how:", StyledLine("  ", (example, "name"), hang=None))
            return
        from defserve.cli.commands.call import call, iter_result_lines, parse_call_options
        from defserve.cli.exits import print_error
        from defserve.cli.screen import ProgressDisplay, show_stdout

        assert self._keyboard is not None
        show_stderr(last.format_line())
        options = parse_call_options([self.address, last.tool])
        with self._keyboard.pause_reading():
            try:
                with ProgressDisplay(f"Calling {last.tool}") as work:
                    result = await call(
                        ServerTarget(address=self.address), last.tool, {}, last.arguments, options, work
                    )
                show_stdout(*iter_result_lines(result, last.tool, options))
            except DefserveError as error:
                print_error(getattr(error, "message", None) or str(error), 0)


class LastCall(NamedTuple):
    tool: str
    arguments: dict[str, Any]

    def format_line(self) -> StyledLine:
        """The call, with its secrets masked."""
        shown: dict[str, Any] = redact(self.arguments)
        words = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in shown.items())
        return StyledLine("  ", (self.tool, "title"), (f" {redact_text(words, limit=MAX_CALL_LENGTH)}", "faint"))


def read_last_call(file: Path) -> LastCall | None:
    """The last call of a tool, as the server's process has written it; None if there was none."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):  # none yet, or half of one
        return None
    arguments = found["arguments"]
    return LastCall(str(found["name"]), arguments if is_object(arguments) else {})


def format_install(target: str) -> Iterator[StyledLine]:
    from defserve.client.known_clients import KNOWN_CLIENTS

    line = shlex.join(("defserve", "install", target, "--client"))
    yield StyledLine("  ", (f"{line} claude-code", "name"), hang=None)
    yield StyledLine((f"  clients: {', '.join(KNOWN_CLIENTS)}", "faint"))


def format_help() -> Iterator[StyledLine]:
    for key, (_, about) in KEYS.items():
        yield StyledLine("  ", (key, "heading"), (f"  {about}", "faint"))
