"""What commands draw, kept in `golden/`: at 80 and 120 columns, with and without colours, and without a terminal.

`python -m tests.cli.goldens` writes the files again, and the recordings in the docs with them. Look at the
difference before you commit it: that is the point of them.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from defserve.cli import main
from defserve.cli.commands.audit import iter_report_lines as audit_page
from defserve.cli.commands.dev import DevScreen, PlainConsole, format_dev_start
from defserve.cli.commands.doctor import DoctorFinding
from defserve.cli.commands.doctor import iter_finding_lines as doctor_page
from defserve.cli.commands.kernel import KernelStartDisplay
from defserve.cli.commands.state import drawing, operations, short_ids
from defserve.cli.commands.top import ToolFigures, TopSnapshot
from defserve.cli.commands.top import iter_snapshot_lines as top_page
from defserve.cli.kernel_actions import ps_lines, search_lines
from defserve.cli.screen import show_block_stream, show_start_at_terminal, show_stderr, show_stdout
from defserve.cli.terminal_answers import make_terminal_answers
from defserve.client.targets import load_server
from defserve.proxying.mounted import BackendTransition
from defserve.serve.network import print_address
from defserve.stores.audit.chain import AuditReport
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint
from defserve.tooling.devserver.handover import ServerSummary, StartProblem
from defserve.tooling.devserver.reload_supervisor import DevConsole

FOLDER: Final = Path(__file__).parent / "golden"
DOCS: Final = [Path(__file__).parents[2] / "docs" / name for name in ("cli.md", "dev-server.md")]
RECORDING: Final = re.compile(r"(<!-- recording: (?P<name>[\w-]+) -->\n```console\n)(?P<text>.*?)(```\n)", re.DOTALL)
WIDTHS: Final = (80, 120)

IDS: Final = [f"chk_{digit * 8}{'0' * 36}" for digit in "1a2f"]
TREE: Final = [
    Checkpoint(IDS[0], None, 0, 1, 1_767_000_000.0),
    Checkpoint(IDS[1], IDS[0], 1, 2, 1_767_000_100.0),
    Checkpoint(IDS[2], IDS[1], 2, 3, 1_767_000_200.0),
    Checkpoint(IDS[3], IDS[0], 1, 4, 1_767_000_300.0),
]
PS: Final = [
    {
        "id": "wiki",
        "state": "connected",
        "era": "stateless",
        "tools": 12,
        "calls_total": 1840,
        "calls": 3,
        "errors_total": 4,
        "median_ms": 38.2,
        "p95_ms": 121.0,
        "restarts": 0,
    },
    {
        "id": "mail",
        "state": "restarting",
        "tools": 4,
        "calls_total": 9,
        "recent_restarts": 2,
        "max_restarts": 5,
        "note": "exited with code 1; its last words:\nTraceback\nConnectionRefusedError: [Errno 111] mail.example:993",
    },
    {"id": "files", "state": "disabled", "calls_total": 0, "restarts": 0},
]
FOUND: Final = [
    {
        "name": "wiki.search",
        "relevance_score": 0.91,
        "server_id": "wiki",
        "risk_level": "safe",
        "description": "Search the pages of the wiki by their words, and give the best of them with an extract.",
    },
    {"name": "files.delete", "relevance_score": 0.4, "server_id": "files", "risk_level": "dangerous"},
]


def _figures(ok: int, errors: int) -> ToolFigures:
    total = ok + errors
    return ToolFigures({"ok": ok, "error": errors}, [(0.001, total // 2), (0.05, total - 1), (float("inf"), total)])


TOP: Final = (
    TopSnapshot(10.0, "shelf", {}, {"find_books": _figures(900, 1), "cover": _figures(10, 0)}),
    TopSnapshot(
        12.0,
        "shelf",
        {"status": "healthy", "uptime_secs": 4210, "tools": 4, "sessions": 7, "in_flight": 2, "memory_bytes": 48 << 20},
        {"find_books": _figures(961, 3), "cover": _figures(10, 0)},
    ),
)
DOCTOR: Final = [
    DoctorFinding("Python", "python", "ok", "3.12.1 at /usr/bin/python3"),
    DoctorFinding("Python", "dependencies", "broken", "jsonpatch", "python -m pip install --upgrade defserve"),
    DoctorFinding("Extras", "http", "ok", "websockets"),
    DoctorFinding("Extras", "redis", "unused", 'needs redis: python -m pip install "defserve[redis]"'),
    DoctorFinding("Ports", "8000", "missing", "not usable: Address already in use", "use another port"),
]

SERVED: Final = ServerSummary("shelf", "1.4.0", 4, 312, {"find_books": "1", "cover": "1", "forget": "1", "lend": "1"})
EDITED: Final = ServerSummary("shelf", "1.4.0", 4, 298, {"find_books": "2", "cover": "1", "forget": "1", "borrow": "1"})
LINK: Final = "http://127.0.0.1:41171/?token=0123456789abcdefghijklmnopqrstuvwxyz_ABCDEFG"
BROKEN: Final = StartProblem(
    "shelf.py:24", "SyntaxError: invalid syntax", ["def borrow(title:):", "                 ^"]
)
FAILED: Final = StartProblem(
    "books.py:7",
    "FileNotFoundError: [Errno 2] No such file or directory: 'books.json'",
    ["shelf.py:9  from books import BOOKS", 'books.py:7  BOOKS = json.loads(Path("books.json").read_text())'],
)


def _show_dev(event: Callable[[DevConsole], None]) -> None:
    screen = DevScreen(Namespace(target="shelf.py"), Path("last-call"), read_clock=lambda: "14:02:11")
    event(screen if sys.stderr.isatty() else PlainConsole())


def _show_dev_start() -> None:
    if sys.stderr.isatty():
        show_stderr(*format_dev_start(SERVED, "shelf.py", "http://127.0.0.1:8000/mcp", LINK, 0.412))
    else:
        console = PlainConsole()
        console.address = "http://127.0.0.1:8000/mcp"
        console.show_ready(SERVED, 0.412)


def _show_run() -> None:
    server = load_server(str(FOLDER / "shelf.py"))
    server.show_address = None  # its module was loaded before
    show_start_at_terminal(server)
    (server.show_address or print_address)("http://127.0.0.1:8000/mcp")


class StartingServer:
    """A server of a kernel that goes through states when it is told to."""

    def __init__(self, id: str, *, enabled: bool = True) -> None:
        self.entry = Namespace(enabled=enabled, start="eager")
        self.id, self.state, self.note, self.tools = id, "registered", "", 0
        self.backend = self if enabled else None

    def watch(self, changed: Callable[[BackendTransition], None]) -> None:
        self._changed = changed

    def make_ps_row(self) -> dict[str, str]:
        return {"note": self.note}

    def enter_state(self, state: Any, note: str = "", tools: int = 0) -> None:
        previous: Any = self.state
        self.state, self.note, self.tools = state, note, tools
        self._changed(BackendTransition(previous, state, note))


def _show_kernel_start() -> None:
    wiki, mail, files = members = [
        StartingServer("wiki"),
        StartingServer("mail"),
        StartingServer("files", enabled=False),
    ]
    server = Namespace(name="house", composition=Namespace(draining=False), show_address=None)
    kernel: Any = Namespace(members={each.id: each for each in members}, server=server, on="http://127.0.0.1:8000/mcp")
    clock = iter((0.0, 1.0, 1.1, 1.2, *[1.32] * 20))
    with KernelStartDisplay(kernel, read_clock=lambda: next(clock)):
        wiki.enter_state("connecting")
        mail.enter_state("connecting")
        (server.show_address or print_address)("http://127.0.0.1:8000/mcp")
        wiki.enter_state("connected", tools=12)
        mail.enter_state("error", str(PS[1]["note"]))
    assert files.state == "registered"


# Name → the command line that a reader types, or what draws.
COMMANDS: Final[dict[str, str]] = {
    "typo": "defserve lst shelf.py",
    "option-typo": "defserve list shelf.py --jsn",
    "list": "defserve list shelf.py",
    "inspect": "defserve inspect shelf.py",
    "check": "defserve check shelf.py",
    "call": "defserve call shelf.py find_books text=e",
    "call-picture": "defserve call shelf.py cover title=Solaris",
    "call-failed": "defserve call shelf.py cover title=Emma",
    "call-unknown": "defserve call shelf.py find_book text=e",
    "read": "defserve read shelf.py shelf://today",
    "prompt": "defserve prompt shelf.py recommend mood=curious",
    "call-markdown": "defserve call desk.py report",
    "call-dangerous": "defserve call desk.py burn title=Solaris token=s3cret-value",
    "diff": "defserve diff released.json shelf.py",
}
# The command lines of what is drawn by hand, for the docs.
TYPED_LINES: Final = {"dev-start": "defserve dev shelf.py", "kernel-start": "defserve kernel"}
# What is typed at a terminal: Enter is no answer.
TYPED: Final[dict[str, list[str]]] = {"call-dangerous": ["\n", "n\n"]}
DRAWN: Final[dict[str, Callable[[], None]]] = {
    "kernel-ps": lambda: show_block_stream(ps_lines(PS)),
    "kernel-search": lambda: show_block_stream(search_lines(FOUND)),
    "top": lambda: show_stdout(*top_page(TOP[1], TOP[0])),
    "top-kernel": lambda: show_stdout(
        *top_page(TopSnapshot(1.0, "kernel", {"servers": 3, "connected": 1}, servers=PS), None)
    ),
    "state-show": lambda: show_stdout(*drawing(TREE, IDS[3], short_ids(IDS))),
    "state-diff": lambda: show_stdout(
        *operations([{"op": "add", "path": "/notes/1", "value": "tea"}, {"op": "remove", "path": "/notes/2"}])
    ),
    "audit-broken": lambda: show_stdout(*audit_page(AuditReport(False, 41, 42, "its MAC is wrong"))),
    "doctor": lambda: show_stdout(*doctor_page(DOCTOR)),
    "dev-start": _show_dev_start,
    "dev-reload": lambda: _show_dev(lambda console: console.show_reload(["shelf.py"], SERVED, EDITED, 0.041)),
    "dev-error": lambda: _show_dev(lambda console: console.show_problem(BROKEN, is_serving=True)),
    "dev-error-at-first": lambda: _show_dev(lambda console: console.show_problem(FAILED, is_serving=False)),
    "dev-exit": lambda: _show_dev(lambda console: console.show_exit(3, restarts_in=0)),
    "run": _show_run,
    "kernel-start": _show_kernel_start,
}
NAMES: Final = (*COMMANDS, *DRAWN)


class Terminal(io.StringIO):
    """Takes what is printed, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Variant(NamedTuple):
    """Where a command prints: to a terminal of a width, with or without colours, or to none."""

    suffix: str
    width: int
    is_terminal: bool = True
    has_colour: bool = False


VARIANTS: Final = (
    *(Variant(f"-{width}", width) for width in WIDTHS),
    *(Variant(f"-{width}-colour", width, has_colour=True) for width in WIDTHS),
    Variant("-plain", 80, is_terminal=False),
)
REDRAWN: Final = "\x1b[2K"
CURSOR: Final = re.compile(r"\x1b\[\?25[hl]")


def drawn(name: str, variant: Variant) -> str:
    """What stays there at the end, without spaces at the ends of lines."""
    screen = Terminal() if variant.is_terminal else io.StringIO()
    env = {"COLUMNS": str(variant.width), "TERM": "xterm-256color"} | ({} if variant.has_colour else {"NO_COLOR": "1"})
    kept = {key: value for key, value in os.environ.items() if key not in ("COLORTERM", "FORCE_COLOR", "NO_COLOR")}
    typed = iter(TYPED.get(name, ()))

    def read_line() -> str:
        line = next(typed, "")
        screen.write(line)  # as a terminal shows what is typed
        return line

    with (
        TemporaryDirectory() as folder,
        patch.dict(os.environ, kept | env, clear=True),
        # A busy machine must not draw a spinner into the file.
        patch("defserve.cli.screen.PATIENCE_SECONDS", 1e6),
        patch("defserve.cli.terminal_answers.make_terminal_answers", lambda: make_terminal_answers(read_line)),
        patch.object(sys, "path", list(sys.path)),
        patch.object(sys, "stdin", Terminal() if variant.is_terminal else io.StringIO()),
        redirect_stdout(screen),
        redirect_stderr(screen),
    ):
        if name in DRAWN:
            DRAWN[name]()
        else:
            for file in (*FOLDER.glob("*.py"), *FOLDER.glob("*.json")):
                shutil.copy(file, folder)
            with chdir(folder):
                main(shlex.split(COMMANDS[name])[1:])
    text = CURSOR.sub("", screen.getvalue().rpartition(REDRAWN)[2])
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def files() -> Iterator[tuple[Path, str, Variant]]:
    """Each golden file, and what it shows."""
    for name in NAMES:
        for variant in VARIANTS:
            yield FOLDER / f"{name}{variant.suffix}.txt", name, variant


def recorded(name: str) -> str:
    """A recording for the docs: the command line, and what it prints at 80 columns without colours."""
    said = (FOLDER / f"{name}-80.txt").read_text(encoding="utf-8")
    line = COMMANDS.get(name) or TYPED_LINES.get(name)
    return f"$ {line}\n{said.rstrip()}\n" if line else said.strip("\n") + "\n"


def documented(text: str) -> str:
    """A page with its recordings as they should be."""
    return RECORDING.sub(lambda found: f"{found[1]}{recorded(found['name'])}{found[4]}", text)


def write() -> None:
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for path, name, variant in files():
        path.write_text(drawn(name, variant), encoding="utf-8")
    for page in filter(Path.exists, DOCS):
        page.write_text(documented(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
