"""The skills that the person looks at: each entry as it was listed, with which everything read later is compared."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import to_json

from defserve.host.client import Client
from defserve.host.fields import Json, object_of, text_of
from defserve.host.skills.entry import CheckedEntry, UnverifiedSkill
from defserve.host.skills.loading import LoadedSkill
from defserve.inspector.protocol import BadMessage
from defserve.protocols.mcp.skills.folder import SKILL_FILE

MOST_SKILLS: Final = 1_000
MOST_LOADED: Final = 16
MOST_BYTES: Final = 16 * 1024 * 1024
LONGEST_FRONTMATTER: Final = 64 * 1024
LONGEST_TEXT: Final = 2_000


class HeldSkills:
    """The entries of each era, as listed last. Reading compares with them, not with what the server says later."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Json]] = {}
        self._loaded: dict[tuple[str, str], tuple[Client, LoadedSkill]] = {}

    def hold(self, era: str, entries: list[Json]) -> list[Json]:
        """Keep a new list, and what the page is told of each skill. What goes beyond the limits is left out."""
        held, told, size = dict[str, Json](), list[Json](), 0
        for entry in entries[:MOST_SKILLS]:
            about = described(entry)
            size += len(to_json(about, inf_nan_mode="null"))
            if size > MOST_BYTES:
                break
            held[str(entry.get("uri"))] = entry
            told.append(about)
        self._entries[era] = held
        self._loaded = {key: loaded for key, loaded in self._loaded.items() if key[0] != era}
        return told

    async def loaded(self, client: Client, era: str, uri: str) -> LoadedSkill:
        """A listed skill whose `SKILL.md` was read. Raises UnverifiedSkill if it differs from its entry."""
        known = self._loaded.get((era, uri))
        if known is not None and known[0] is client:
            return known[1]
        entry = self._entries.get(era, {}).get(uri)
        if entry is None:
            raise BadMessage("this skill is not in the list any more", fix="list the skills again")
        skill = await client.load_skill(entry)
        self._loaded[era, uri] = client, skill
        if len(self._loaded) > MOST_LOADED:
            del self._loaded[next(iter(self._loaded))]
        return skill

    def forget(self, era: str, uri: str) -> None:
        """Read its `SKILL.md` anew the next time."""
        self._loaded.pop((era, uri), None)


def described(entry: Json) -> Json:
    """A skill for the page. One whose entry cannot be verified has `refused`, and no files."""
    frontmatter = object_of(entry.get("frontmatter"))
    told: Json = {
        "uri": (text_of(entry.get("uri")) or "")[:LONGEST_TEXT],
        "name": (text_of(frontmatter.get("name")) or "")[:LONGEST_TEXT],
        "about": (text_of(frontmatter.get("description")) or "")[:LONGEST_TEXT],
        "frontmatter": _short(frontmatter),
        "files": [],
        "fingerprint": None,
        "refused": None,
    }
    try:
        checked = CheckedEntry(entry)
    except UnverifiedSkill as error:
        return {**told, "refused": error.message[:LONGEST_TEXT]}
    files = sorted(checked.files.values(), key=lambda file: (file.path != SKILL_FILE, file.path))
    return {**told, "files": [file._asdict() for file in files], "fingerprint": checked.fingerprint}


def _short(frontmatter: Json) -> Any:
    return frontmatter if len(to_json(frontmatter, inf_nan_mode="null")) <= LONGEST_FRONTMATTER else None
