"""`defserve migrate`: rewrite a server of FastMCP or the official SDK to defserve."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final, NamedTuple

from defserve.cli.content.files import writing
from defserve.cli.parser import CommandParser
from defserve.cli.screen.blocks import Block, Data, Diff, Line
from defserve.cli.screen.screen import show
from defserve.errors import UsageError
from defserve.tooling.migrate.migrating import Migration, migrate

ABOUT: Final = "Rewrite a server of FastMCP or the official SDK. Without --write, show what would change."
EXAMPLES: Final = """  defserve migrate server.py
  defserve migrate server.py --write
  defserve migrate src/shop/*.py --diff > shop.patch
"""


class Migrated(NamedTuple):
    """One file, as it was and as it is now."""

    path: Path
    before: str
    migration: Migration

    @property
    def diff(self) -> str:
        from difflib import unified_diff

        name = os.path.relpath(self.path)
        after = self.migration.text
        return "".join(unified_diff(self.before.splitlines(True), after.splitlines(True), name, name))


def main(argv: list[str]) -> int:
    parser = CommandParser("defserve migrate", ABOUT, EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a Python file")
    parser.add_argument("--write", action="store_true", help="change the files")
    parser.add_argument("--diff", action="store_true", help="print the differences alone")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(argv)
    done = [_migrated(Path(name)) for name in options.files]
    if options.write:
        with writing("check its permissions; without --write the changes are shown alone"):
            _write(done)
    if options.json:
        show(Data([_data(each) for each in done]))
        return 0
    for each in done:
        if options.diff or not options.write:
            show(Diff(each.diff))
        if not options.diff:
            show(*_report(each, written=options.write))
    return 0


def _migrated(path: Path) -> Migrated:
    try:
        before = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", fix="name a Python file") from None
    try:
        return Migrated(path, before, migrate(before, path.stem))
    except UsageError as error:
        raise UsageError(f"{path}: {error.problem}", fix=error.fix) from None


def _write(done: list[Migrated]) -> None:
    for each in done:
        if each.migration.text != each.before:
            each.path.write_text(each.migration.text, encoding="utf-8")


def _data(each: Migrated) -> dict[str, object]:
    notes = [{"line": note.line, "text": note.text} for note in each.migration.notes]
    return {"path": os.path.relpath(each.path), "diff": each.diff, "notes": notes}


def _report(each: Migrated, *, written: bool) -> list[Block]:
    name, notes = os.path.relpath(each.path), each.migration.notes
    if each.migration.text == each.before:
        lines: list[Block] = [f"{name}: nothing to change"]
    else:
        lines = [Line(("Changed ", "good"), name)] if written else []
    if notes:
        lines += ["", f"Left to do by hand ({len(notes)}), by the lines of the file as it was:"]
        lines += [Line((f"  {name}:{note.line}", "good"), f"  {note.text}") for note in notes]
    if not written and each.migration.text != each.before:
        # The name of a file is copied into a shell.
        word = shlex.quote(f"./{name}" if name.startswith("-") else name)
        lines += ["", f"Next: `defserve migrate {word} --write`, then `defserve check {word}`."]
    return lines
