"""Rules about skills: what is in their folders, and what their texts speak of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from typing import Final
from urllib.parse import unquote

from defserve.guard.text import hidden as hidden_in
from defserve.tooling.lint.definitions import Definitions, ServedSkill
from defserve.tooling.lint.finding import LintFinding
from defserve.tooling.packaging.private_files import private_kind
from defserve.tooling.packaging.secret_contents import secret_kind
from defserve.wire.jsonvalue import is_mapping

RESERVED: Final = "io.modelcontextprotocol/"
# The Agent Skills specification: the most characters of a field.
LONGEST: Final = {"description": 1024, "compatibility": 500}
# Left out without a word: nobody expects them to be served.
EXPECTED: Final = ("it is hidden", "it is a cache")
LINK: Final = re.compile(r"\]\(\s*<?([^)\s>#?]+)")


def private(found: Definitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for path, data in skill.files.items():
            if kind := private_kind(path):
                problem = f"{path!r} looks like {kind[0]}"
            elif secret := secret_kind(BytesIO(data)):
                problem = f"{path!r} contains {secret}"
            else:
                continue
            yield _about(skill, f"{problem}, and every client can read it", "move it out of the folder of the skill")


def hidden(found: Definitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for path, data in skill.files.items():
            text = data.decode("utf-8", "ignore").removeprefix("\ufeff") if path.endswith(".md") else ""
            if shown := [name for _, name in hidden_in(text) if not name.startswith("line break")]:
                yield _about(skill, f"{path!r} contains {shown[0]}", "delete it: people do not see it, but models do")


def malformed(found: Definitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for name, most in LONGEST.items():
            if len(str(skill.frontmatter.get(name) or "")) > most:
                yield _about(skill, f"its {name} is longer than {most} characters", "clients may refuse it: shorten it")
        metadata = skill.frontmatter.get("metadata")
        for name in metadata if is_mapping(metadata) else ():
            if name.startswith(RESERVED):
                yield _about(skill, f"its metadata uses the reserved name {name!r}", "use a prefix of your own")


def missing(found: Definitions) -> Iterator[LintFinding]:
    """Links in `SKILL.md` that lead to no file of the skill."""
    for skill in found.skills:
        for link in dict.fromkeys(LINK.findall(skill.manifest)):
            path = unquote(link).removeprefix("./")
            if ":" in path or path.startswith("/") or path in skill.paths:
                continue
            if not any(known.startswith(f"{path.rstrip('/')}/") for known in skill.paths):
                yield _about(
                    skill, f"SKILL.md links to {link!r}, which it does not have", "write the file, or mend the link"
                )


def left_out(found: Definitions) -> Iterator[LintFinding]:
    for skill in found.skills:
        for path, reason in skill.left_out:
            if reason not in EXPECTED:
                yield _about(skill, f"{path!r} is not served: {reason}", "put the file itself there, or remove it")


def _about(skill: ServedSkill, problem: str, fix: str) -> LintFinding:
    return LintFinding(f"skill {skill.name!r}", skill.where, problem, fix)
