"""What people type into the search field, and whether the search leads them to a page that answers it.

The questions are in questions.toml. The search itself is asked, in Node.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tests.conformance.suite_install import node

from .places import SITE

QUESTIONS: Final = Path(__file__).with_name("questions.toml")


class QuestionSet(NamedTuple):
    """A table of questions.toml, and how many of its questions have to lead to their page with the first result."""

    name: str
    enough: int
    # Single answers are not listed: whoever works on the search does not see them.
    held_out: bool = False

    @property
    def questions(self) -> dict[str, list[str]]:
        tables: Mapping[str, Mapping[str, str]] = tomllib.loads(QUESTIONS.read_text("utf-8"))
        return {question: pages.split() for question, pages in tables[self.name].items()}


SETS: Final = (
    QuestionSet("newcomers", enough=74),
    QuestionSet("users", enough=43),
    QuestionSet("worked_with", enough=61),
    QuestionSet("fastmcp_users", enough=43),
    QuestionSet("fastmcp_problems", enough=44),
    QuestionSet("details", enough=41),
    QuestionSet("held_out", enough=63, held_out=True),
    QuestionSet("strangers", enough=27, held_out=True),
    QuestionSet("november_worked_with", enough=39),
    QuestionSet("november_final", enough=45, held_out=True),
    QuestionSet("november_reported", enough=13, held_out=True),
    QuestionSet("november_last", enough=40, held_out=True),
    QuestionSet("november_watched", enough=42),
    QuestionSet("november_sealed", enough=36, held_out=True),
    QuestionSet("november_sealed_details", enough=38, held_out=True),
    QuestionSet("november_titles", enough=41, held_out=True),
)


class Score(NamedTuple):
    """How many questions lead to their page with the first result, and with one of three; what the others lead to."""

    asked: QuestionSet
    total: int
    first: int
    among_three: int
    missed: dict[str, list[str]]

    @property
    def problems(self) -> list[str]:
        """Why this is not enough."""
        if self.first >= self.asked.enough:
            return []
        return [f"the search for {self}: {self.asked.enough} have to come first", *self.misses]

    @property
    def misses(self) -> list[str]:
        if self.asked.held_out:
            return []
        return [f"the search for {question!r} gives {pages}" for question, pages in self.missed.items()]

    def __str__(self) -> str:
        name = self.asked.name.replace("_", " ")
        return f"{name}: {self.first} of {self.total} first, {self.among_three} among three"


def measure(asked: QuestionSet, site: Path = SITE) -> Score:
    wanted = asked.questions
    found = find_pages(list(wanted), site)
    ranks = {question: _rank(pages, wanted[question]) for question, pages in found.items()}
    first = sum(rank == 0 for rank in ranks.values())
    among_three = sum(rank < 3 for rank in ranks.values())
    missed = {question: found[question][:3] for question, rank in ranks.items() if rank}
    return Score(asked, len(wanted), first, among_three, missed)


def find_pages(questions: list[str], site: Path = SITE) -> dict[str, list[str]]:
    """The pages that the search of a built site gives for each question, the best first."""
    command = [str(node()), str(Path(__file__).with_name("search.mjs")), str(site)]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return {
        question: [address.partition("#")[0].removesuffix(".html") for address in addresses]
        for question, addresses in found.items()
    }


def _rank(pages: list[str], wanted: list[str]) -> int:
    return next((rank for rank, page in enumerate(pages) if page in wanted), len(pages) + 3)
