"""A Dockerfile as the list of its instructions."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The words of its exec form, or those between blanks."""
        return json.loads(self.text) if self.text.startswith("[") else self.text.split()


def instructions(project: Path) -> list[Instruction]:
    """Those of a project's Dockerfile, comments left out and continued lines joined."""
    text = (project / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n\s*", "", "\n".join(each for each in text.splitlines() if not each.startswith("#")))
    return [Instruction(*line.split(maxsplit=1)) for line in lines.splitlines() if line.strip()]


def the(name: str, project: Path) -> Instruction:
    """The only instruction of that name."""
    (found,) = [each for each in instructions(project) if each.name == name]
    return found


def is_sent(project: Path, name: str) -> bool:
    """Whether `.dockerignore` lets a file or folder at the top of the project into the build."""
    sent = True
    for line in (project / ".dockerignore").read_text("utf-8").splitlines():
        if fnmatch.fnmatch(name, line.removeprefix("!")):
            sent = line.startswith("!")
    return sent
