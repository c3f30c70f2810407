"""A reader who types what a page says and looks whether it shows the same."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

BLOCK = re.compile(r"^(?:<!-- ([^\n]*?) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"# (\S+\.\w+)\n")
PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+")

# What a page says above a block of commands, for the reader of its source and for us.
NETWORK, BACKGROUND = "needs the network", "keeps running"
SKIPPED = {"needs Docker", "needs root", "needs uv"}
# Blocks that are files, not commands.
FILES = {"python", "ini", "nginx"}


class Reader:
    """Somebody at a shell who does as the page says."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self._environment, self.port = folder, environment, "8000"
        self._shell = self._started("bash", "--norc")
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*self._running, self._shell):
            process.terminate()
            process.communicate()

    def types(self, command: str) -> str:
        """What a command prints."""
        assert self._shell.stdin is not None
        # Only the shell itself reads what is typed, or it would miss the next command.
        self._shell.stdin.write(f"{{ {self._here(command)}\n}} </dev/null; echo; echo --- $PWD\n")
        self._shell.stdin.flush()
        return "".join(self._until_prompt()).removesuffix("\n")

    def starts(self, command: str) -> str:
        """What a command that does not end prints, up to its address. It is given a port that is free."""
        process = self._started("bash", "--norc", "-c", f"exec env {PORT.sub('0', command)}")
        self._running.append(process)
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if found := PORT.search(line):
                self.port = found[0]
                break
        return PORT.sub("8000", printed)

    def _here(self, command: str) -> str:
        return PORT.sub(self.port, command)

    def _started(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )

    def _until_prompt(self) -> Iterator[str]:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            if line.startswith("--- "):
                self.folder = Path(line.removeprefix("--- ").strip())
                return
            yield line
        raise AssertionError("the shell has ended")


def commands(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, and what it shows of each one's output."""
    assert block.startswith("$ ")
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def is_shown(shown: str, printed: str) -> bool:
    """Whether an output is what the page shows, where `…` stands for anything."""
    pattern = "".join(".*" if part == "…" else re.escape(part) for part in re.split("(…)", shown.strip()))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def follow(page: str, reader: Reader, online: Callable[[str], str] | None = None) -> None:
    """Write each file of a page and type each command, in order; fails where something else is printed than it shows.

    `online` makes of a command that needs the network the one to type; without it, such commands are left out. Those
    that need Docker, root or uv always are.
    """
    for note, language, block in BLOCK.findall(page):
        if language in FILES:
            named = FILE_NAME.match(block)
            assert named, f"each block is a whole file, which is named in its first line:\n{block}"
            (reader.folder / named[1]).write_text(block, encoding="utf-8")
            continue
        assert note in ("", NETWORK, BACKGROUND, *SKIPPED), note
        if note in SKIPPED:
            continue
        for command, shown in commands(block):
            if note == NETWORK:
                if online is not None:
                    reader.types(online(command))
                continue
            printed = (reader.starts if note == BACKGROUND else reader.types)(command)
            assert is_shown(shown, printed), f"$ {command}\n{printed}\n-- the page shows:\n{shown}"
