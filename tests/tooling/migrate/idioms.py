"""Idioms of FastMCP and the SDK, and what `defserve migrate` makes of them, in `idioms.txt`.

`python -m tests.tooling.migrate.idioms` writes the results anew: read the difference before you commit it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from defserve.tooling.migrate.migration import migrate

FILE = Path(__file__).with_name("idioms.txt")


class Idiom(NamedTuple):
    """`left`: a line of `before` for each note, with its number."""

    title: str
    before: str
    after: str
    left: list[str]


def read_idioms() -> list[Idiom]:
    idioms: list[Idiom] = []
    for part in FILE.read_text(encoding="utf-8").split("=== ")[1:]:
        title, _, rest = part.partition("\n")
        before, after, left = (*re.split(r"^--- (?:migrated|left)\n", rest, flags=re.MULTILINE), "", "")[:3]
        idioms.append(Idiom(title, before, after, left.splitlines()))
    return idioms


def migrate_idiom(idiom: Idiom) -> Idiom:
    done = migrate(idiom.before)
    return idiom._replace(after=done.text, left=[f"{note.line}: {note.text}" for note in done.notes])


if __name__ == "__main__":
    parts = (
        f"=== {each.title}\n{each.before}--- migrated\n{each.after}--- left\n"
        + "".join(f"{line}\n" for line in each.left)
        for each in map(migrate_idiom, read_idioms())
    )
    FILE.write_text("".join(parts), encoding="utf-8")
