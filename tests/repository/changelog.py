"""Reads CHANGELOG.md and says what is wrong with it; given a tag, prints the notes of that release.

python -m tests.repository.changelog                       check
python -m tests.repository.changelog v0.2.0                check that the tag is the version, and print its section
python -m tests.repository.changelog v0.2.0 OWNER/NAME     the same, with links to the files of that tag on GitHub
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.release.readme import with_absolute_links

ROOT = Path(__file__).parents[2]
SUBJECTS = (
    "Getting started",
    "Upgrading",
    "Tools and schemas",
    "Results and files",
    "Testing and evals",
    "Command line",
    "Inspector",
    "Clients and extensions",
    "Who may do what",
    "Signing in",
    "State and stores",
    "Events and background tasks",
    "APIs, search and code mode",
    "Kernel and mounting",
    "HTTP and transports",
    "Operation and speed",
    "Guard and sandbox",
    "Hooks and hosts",
    "Topics",
    "Docs and packaging",
)
"""What a section is divided into, in this order: what most users meet first stands first."""
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
"""What the section of the first release is divided into."""
MARKS = ("Breaking", "Deprecated", "Removed", "Security")
"""What a bullet under a subject may begin with: `- **Breaking:** …`, also two of them."""
MARK = re.compile(r"\*\*([^*]+)\*\* ?")
HEADING = re.compile(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})")
UNRELEASED = "Unreleased"


class Section(NamedTuple):
    """What follows one `## ` heading."""

    title: str
    text: str

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, self.title.split(" ")[0].split(".")))


def sections(changelog: str) -> list[Section]:
    _, *parts = re.split(r"^## ", changelog, flags=re.MULTILINE)
    return [Section(title.strip(), text.strip()) for title, _, text in (part.partition("\n") for part in parts)]


def problems(changelog: str, version: str) -> Iterator[str]:
    """Everything that keeps the changelog from being read by people and by the release."""
    found = sections(changelog)
    if not found or found[0].title != UNRELEASED:
        yield f"the first section is not '## {UNRELEASED}'"
        return
    released = found[1:]
    for section in released:
        match = HEADING.fullmatch(section.title)
        if match is None:
            yield f"'## {section.title}' is not '## 1.2.3 - 2026-01-31'"
            return
        try:
            date.fromisoformat(match[2])
        except ValueError:
            yield f"'## {section.title}' has no such day"
        if not section.text:
            yield f"'## {section.title}' says nothing"
    for section in found:
        yield from heading_problems(section, KINDS if section is found[-1] else SUBJECTS)
        yield from mark_problems(section)
    for newer, older in pairwise(released):
        if newer.version <= older.version:
            yield f"{newer.title} stands above {older.title}"
    if released and released[0].version > tuple(map(int, version.split("."))):
        yield f"{released[0].title} is above the version {version} of version.py"


def heading_problems(section: Section, known: tuple[str, ...]) -> Iterator[str]:
    """The headings of a section are known, and stand once and in their order."""
    headings = re.findall(r"^### (.*)$", section.text, re.MULTILINE)
    for heading in headings:
        if heading not in known:
            yield f"'### {heading}' under {section.title} is none of {', '.join(known)}"
            return
    for earlier, later in pairwise(headings):
        if earlier == later:
            yield f"'### {later}' stands twice under {section.title}"
        elif known.index(earlier) > known.index(later):
            yield f"'### {later}' under {section.title} belongs above '### {earlier}'"


def mark_problems(section: Section) -> Iterator[str]:
    """The bold words that a bullet begins with are marks, so that nobody who looks for them misses one."""
    for bullet in re.findall(r"^- (\*\*.*)$", section.text, re.MULTILINE):
        while (match := MARK.match(bullet)) is not None:
            if match[1].removesuffix(":") not in MARKS or not match[1].endswith(":"):
                yield f"'**{match[1]}**' under {section.title} is none of {', '.join(f'**{mark}:**' for mark in MARKS)}"
            bullet = bullet[match.end() :]


def version() -> str:
    text = (ROOT / "framework" / "defserve" / "base" / "version.py").read_text("utf-8")
    found = re.search(r'^VERSION = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def main(arguments: list[str]) -> int:
    changelog, current = (ROOT / "CHANGELOG.md").read_text("utf-8"), version()
    wrong = list(problems(changelog, current))
    notes = ""
    if arguments:
        tag, *repository = arguments
        if tag != f"v{current}":
            wrong.append(f"the tag {tag} is not v{current}, the version of version.py")
        notes = next((each.text for each in sections(changelog) if each.title.startswith(f"{tag[1:]} - ")), "")
        if not notes:
            wrong.append(f"there is no section for {tag}")
        for name in repository:
            notes = with_absolute_links(notes, name, tag)
    for problem in wrong:
        print(f"CHANGELOG.md: {problem}", file=sys.stderr)
    if notes and not wrong:
        print(notes)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
