"""The programs that pages of the docs show: a block with a title is the file of that name.

`python -m tests.examples.cookbook.pages` writes the files into the pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "cookbook"
PROGRAMS = ROOT / "examples" / "cookbook"
CONSOLE = re.compile(r"^(?:<!-- (?P<needs>.*?) -->\n)?```console\n(?P<lines>.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r'^(```\w* title="(?P<file>[^"]+)")\n.*?^```$', re.DOTALL | re.MULTILINE)


def recipes() -> Iterator[Path]:
    """The pages of recipes: all but the list of them."""
    return (page for page in sorted(PAGES.glob("*.md")) if page.stem != "index")


def shown_files(page: Path) -> list[str]:
    return [found["file"] for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def with_files(page: Path) -> str:
    """The page as it should be: its blocks with what is in the files now."""

    def block(found: re.Match[str]) -> str:
        text = (ROOT / found["file"]).read_text(encoding="utf-8")
        return f"{found[1]}\n{text.rstrip()}\n```"

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Commands, and what the page shows of their output. Left out are blocks that need, or start, something else."""
    for block in CONSOLE.finditer(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block["lines"], flags=re.MULTILINE)[1:] if block["needs"] is None else ():
            command, _, shown = part.partition("\n")
            yield command, shown


def is_shown(shown: str, printed: str) -> bool:
    """Whether an output is what the page shows, where `…` stands for anything."""
    pattern = "".join(".*" if part == "…" else re.escape(part) for part in re.split("(…)", shown.strip()))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def main() -> None:
    for page in recipes():
        page.write_text(with_files(page), encoding="utf-8")


if __name__ == "__main__":
    main()
