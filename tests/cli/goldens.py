"""What commands draw, kept in `golden/`: at 80 and 120 columns, with and without colours.

`python -m tests.cli.goldens` writes the files again, and the recordings in docs/cli.md with them. Look at the
difference before you commit it: that is the point of them.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

from defserve.cli import main
from defserve.cli.commands.audit import page as audit_page
from defserve.cli.commands.doctor import DoctorFinding
from defserve.cli.commands.doctor import page as doctor_page
from defserve.cli.commands.state import drawing, operations, short_ids
from defserve.cli.commands.top import page as top_page
from defserve.cli.kernel_actions import ps_lines, search_lines
from defserve.cli.screen import show_each, show_stdout
from defserve.cli.top_sources import ToolFigures, TopSnapshot
from defserve.stores.audit.chain import AuditReport
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint

FOLDER: Final = Path(__file__).parent / "golden"
DOCS: Final = Path(__file__).parents[2] / "docs" / "cli.md"
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
    DoctorFinding("Extras", "http", "ok", "uvicorn, httptools, websockets"),
    DoctorFinding("Extras", "redis", "unused", 'needs redis: python -m pip install "defserve[redis]"'),
    DoctorFinding("Ports", "8000", "missing", "not usable: Address already in use", "use another port"),
]

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
    "diff": "defserve diff released.json shelf.py",
}
DRAWN: Final[dict[str, Callable[[], None]]] = {
    "kernel-ps": lambda: show_each(ps_lines(PS)),
    "kernel-search": lambda: show_each(search_lines(FOUND)),
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
}
NAMES: Final = (*COMMANDS, *DRAWN)


class Terminal(io.StringIO):
    """Takes what is printed, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def drawn(name: str, width: int, *, colour: bool) -> str:
    """What comes to a terminal of this width, without spaces at the ends of lines."""
    screen = Terminal()
    env = {"COLUMNS": str(width), "TERM": "xterm-256color"} | ({} if colour else {"NO_COLOR": "1"})
    kept = {key: value for key, value in os.environ.items() if key not in ("COLORTERM", "FORCE_COLOR", "NO_COLOR")}
    with (
        TemporaryDirectory() as folder,
        patch.dict(os.environ, kept | env, clear=True),
        # A busy machine must not draw a spinner into the file.
        patch("defserve.cli.progress.PATIENCE_SECONDS", 1e6),
        patch.object(sys, "path", list(sys.path)),
        redirect_stdout(screen),
        redirect_stderr(screen),
    ):
        if name in DRAWN:
            DRAWN[name]()
        else:
            for file in ("shelf.py", "released.json"):
                shutil.copy(FOLDER / file, folder)
            with chdir(folder):
                main(COMMANDS[name].split()[1:])
    return "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())


def files() -> Iterator[tuple[Path, str, int, bool]]:
    """Each golden file, and what it shows."""
    for name in NAMES:
        for width in WIDTHS:
            for colour in (False, True):
                yield FOLDER / f"{name}-{width}{'-colour' if colour else ''}.txt", name, width, colour


def recorded(name: str) -> str:
    """A recording for the docs: the command line, and what it prints at 80 columns without colours."""
    said = (FOLDER / f"{name}-80.txt").read_text(encoding="utf-8")
    return f"$ {COMMANDS[name]}\n{said}" if name in COMMANDS else said


def documented(text: str) -> str:
    """A page with its recordings as they should be."""
    return RECORDING.sub(lambda found: f"{found[1]}{recorded(found['name'])}{found[4]}", text)


def write() -> None:
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for path, name, width, colour in files():
        path.write_text(drawn(name, width, colour=colour), encoding="utf-8")
    if DOCS.exists():
        DOCS.write_text(documented(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write()
