"""The terminal on the first page: commands that were run and recorded, drawn as an SVG that plays once.

`python -m tests.site.pictures --record` runs them again. They run in a pseudo-terminal, in a folder with one file, and
what they print is kept with its colours in `docs/pictures/terminal.json`. The picture is made of that alone.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple, TypedDict

from .places import DOCS

RECORDING: Final = DOCS / "pictures" / "terminal.json"
FIRST_PAGE: Final = DOCS / "index.md"
PROGRAM: Final = "calc.py"
COMMANDS: Final = (
    f"defserve list {PROGRAM}",
    f"defserve call {PROGRAM} add a=1 b=2",
    f"defserve inspect {PROGRAM} --web",
)
# What runs until it is ended has said all when this comes.
SAID_ALL: Final = re.compile(rb"token=\S+\r\n")
# What is different each time, and what stands for it.
VARIES: Final = ((re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:6274"), (re.compile(r"token=[\w-]+"), "token=…"))
COLUMNS: Final = 60
MAX_BYTES: Final = 64 * 1024
MAX_SECONDS: Final = 60


class Step(TypedDict):
    """A command and the lines that it printed. A line is made of parts: a text and the codes of its look."""

    command: str
    lines: list[list[tuple[str, str]]]


# -- recording ---------------------------------------------------------------------------------------------------------


def record() -> list[Step]:
    """Run the commands beside the program that the first page shows."""
    program = re.search(r"^```python\n(.*?)^```$", FIRST_PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert program, f"{FIRST_PAGE.name} shows no program"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / PROGRAM).write_text(program[1], encoding="utf-8")
        return [{"command": command, "lines": read_screen(run(command, folder))} for command in COMMANDS]


def run(command: str, folder: str) -> str:
    """What a command writes to a terminal of its own."""
    program, *arguments = command.split()
    found = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    assert found, f"there is no {program}"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        size = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "40", "BROWSER": "true"}
        os.execve(found, [program, *arguments], {"PATH": os.defpath, "HOME": folder, "LANG": "C.UTF-8", **size})
    try:
        written = _read_until_said(terminal)
    finally:
        os.kill(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        os.close(terminal)
    text = written.decode()
    for varies, instead in VARIES:
        text = varies.sub(instead, text)
    return text


def _read_until_said(terminal: int) -> bytes:
    written, deadline = b"", time.monotonic() + MAX_SECONDS
    while not SAID_ALL.search(written) and len(written) < MAX_BYTES:
        ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"nothing more came after {written!r}")
        try:
            more = os.read(terminal, 4096)
        except OSError:  # so Linux says that nobody writes any more
            more = b""
        if not more:
            break
        written += more
    return written


# Text, the end of a line, or a sequence: its numbers and its letter.
_PIECE: Final = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def read_screen(written: str) -> list[list[tuple[str, str]]]:
    """The lines that stand on a terminal after this was written to it: what spinners drew is gone."""
    lines: list[list[tuple[str, str]]] = [[]]
    row, look = 0, ""
    for found in _PIECE.finditer(written):
        numbers, letter, returned, ended, text = found.groups()
        if letter == "m":
            look = "" if numbers in ("", "0") else ";".join(filter(None, (look, numbers)))
        elif letter == "A":
            row = max(0, row - int(numbers or 1))
        elif letter == "K":
            lines[row] = []
        elif letter not in (None, "h", "l"):
            raise ValueError(f"this terminal does not know {found[0]!r}")
        elif ended:
            row += 1
            lines += [[]] * (row == len(lines))
        elif text:
            lines[row] = [*lines[row], (text, look)]
        # A return alone needs nothing: what follows it here erases the line, or ends it.
        assert letter or returned or ended or text
    while lines and not lines[-1]:
        lines.pop()
    return lines


# -- drawing -----------------------------------------------------------------------------------------------------------

SIZE, LINE, CELL = 13, 18, 7.8
EDGE, HEAD = 16, 34
WIDTH: Final = 500
SECONDS: Final = 8.0
# What a code of the terminal looks like here.
LOOKS: Final = {
    "1": "b",
    "2": "d",
    "31": "bad",
    "32": "ok",
    "33": "warn",
    "34": "acc",
    "35": "k2",
    "36": "acc",
}
STYLE: Final = """\
.cast text{font:13px var(--mono);fill:var(--text);white-space:pre}
.cast .b{font-weight:700}.cast .d{fill:var(--text-3)}.cast .p{fill:var(--ok);font-weight:700}
.cast .bad{fill:var(--bad)}.cast .ok{fill:var(--ok)}.cast .warn{fill:var(--warn)}.cast .acc{fill:var(--accent)}
.cast .k2{fill:var(--k2)}.cast .type{visibility:hidden}
@media (prefers-reduced-motion:no-preference){
.cast .show{animation:cast-show 1ms linear both}
.cast .type{animation-fill-mode:both;visibility:visible}
.cast .type rect{animation:cast-hide 1ms linear forwards}
}
@keyframes cast-show{from{opacity:0}to{opacity:1}}
@keyframes cast-hide{to{opacity:0}}"""


class Times(NamedTuple):
    """When the prompt of a command comes, when it is typed, for how long, and when its lines come: in seconds."""

    prompt: float
    typed: float
    typing: float
    printed: float


def draw(steps: Sequence[Step]) -> str:
    rows = sum(2 + len(step["lines"]) for step in steps) - 1
    height = HEAD + EDGE + rows * LINE + EDGE
    body = "\n".join(_draw_steps(steps))
    about = f"A terminal: {', then '.join(step['command'] for step in steps)}"
    dots = "".join(f'<circle cx="{x}" cy="{HEAD // 2}" r="5"/>' for x in (20, 38, 56))
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    frame = f'x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="10"'
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" class="cast" {size} role="img" aria-label="{about}">
<style>
{STYLE}
</style>
<rect {frame} fill="var(--surface)" stroke="var(--line-strong)"/>
<path d="M1 {HEAD}H{WIDTH - 1}" stroke="var(--line)"/><g fill="var(--line-strong)">{dots}</g>
{body}
</svg>
"""


def transcript(steps: Sequence[Step]) -> str:
    """The same for who reads: commands and what they print."""
    return "\n".join(line for step in steps for line in (f"$ {step['command']}", *_plain(step), "")).rstrip()


def schedule(steps: Sequence[Step]) -> list[Times]:
    """When each thing happens: typing by the letter, reading by the line, all of it in `SECONDS`."""
    now, times = 0.3, list[Times]()
    for step in steps:
        typing = 0.045 * len(step["command"])
        times.append(Times(now, now + 0.4, typing, now + 0.6 + typing))
        now = times[-1].printed + 0.8 + 0.1 * len(step["lines"])
    return [Times(*(moment * SECONDS / now for moment in each)) for each in times]


def _draw_steps(steps: Sequence[Step]) -> Iterator[str]:
    y = HEAD + EDGE + SIZE
    for step, times in zip(steps, schedule(steps), strict=True):
        yield from _draw_command(step["command"], y, times)
        y += LINE
        yield f'<g class="show" style="animation-delay:{times.printed:.2f}s">'
        for line in step["lines"]:
            if line:
                yield f'<text x="{EDGE}" y="{y}">{"".join(_draw_part(*part) for part in line)}</text>'
            y += LINE
        yield "</g>"
        y += LINE


def _draw_command(command: str, y: int, times: Times) -> Iterator[str]:
    """The prompt, the command, and a sheet over it that moves away letter by letter, with the cursor at its edge."""
    begin, width = EDGE + 2 * CELL, len(command) * CELL
    yield f'<g class="show" style="animation-delay:{times.prompt:.2f}s"><text x="{EDGE}" y="{y}" class="p">$</text>'
    yield f'<text x="{begin:.1f}" y="{y}" textLength="{width:.1f}">{escape(command)}</text>'
    name = f"cast-{y}"
    yield f"<style>@keyframes {name}{{to{{transform:translateX({width:.1f}px)}}}}</style>"
    moved = f"animation-name:{name};animation-delay:{times.typed:.2f}s;animation-duration:{times.typing:.2f}s"
    yield f'<g class="type" style="{moved};animation-timing-function:steps({len(command)})">'
    for covered, height, colour in ((width, LINE, "surface"), (CELL, SIZE + 3, "text-3")):
        place = f'x="{begin:.1f}" y="{y - SIZE}" width="{covered:.1f}" height="{height}"'
        yield f'<rect {place} fill="var(--{colour})" style="animation-delay:{times.printed:.2f}s"/>'
    yield "</g></g>"


def _draw_part(text: str, look: str) -> str:
    classes = " ".join(LOOKS[code] for code in look.split(";") if code)
    return f'<tspan class="{classes}">{escape(text)}</tspan>' if classes else escape(text)


def _plain(step: Step) -> Iterator[str]:
    return ("".join(text for text, _ in line) for line in step["lines"])


# -- keeping -----------------------------------------------------------------------------------------------------------


def read_recording() -> list[Step]:
    return json.loads(RECORDING.read_text("utf-8"))


def write_recording(steps: Sequence[Step]) -> None:
    lines = json.dumps(steps, ensure_ascii=False, indent=1)
    RECORDING.write_text(lines + "\n", encoding="utf-8")
