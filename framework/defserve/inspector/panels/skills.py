"""The Skills panel: skills and their files, read only as far as they are what was listed."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from collections.abc import Mapping
from typing import Any, Final

from defserve.host.fields import Json, object_of, text_of
from defserve.host.skills.entry import UnverifiedSkill
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels.verb import Verb, asking
from defserve.inspector.protocol import Request

EXTENSION: Final = "io.modelcontextprotocol/skills"
FOLDER: Final = "inode/directory"
MOST_CHILDREN: Final = 2_000
LONGEST_TEXT: Final = 2_000


async def list_skills(inspection: Inspection, request: Request) -> Any:
    """Every skill, as `described` says. Nothing is read. `directories`: folders can be read. `more`: left out."""
    async with asking(inspection, request) as client:
        offer = object_of(client.capabilities.get("extensions")).get(EXTENSION)
        if offer is None:
            return {"offered": False, "directories": False, "skills": [], "more": 0}
        found = await client.skills()
        skills = inspection.skills.hold(_era(client.stateless), found)
        directories = object_of(offer).get("directoryRead") is True
        return {"offered": True, "directories": directories, "skills": skills, "more": len(found) - len(skills)}


async def read(inspection: Inspection, request: Request) -> Any:
    """A file of a skill: its text, or its bytes in base64, with the digest that was found.

    A file that is not what was listed is `refused`, and nothing of it is told. `again` reads `SKILL.md` anew.
    """
    uri, path = request.text("uri"), request.text("path")
    async with asking(inspection, request) as client:
        era = _era(client.stateless)
        if request.arguments.get("again") is True:
            inspection.skills.forget(era, uri)
        try:
            data = await (await inspection.skills.loaded(client, era, uri)).read(path)
        except UnverifiedSkill as error:
            return {"path": path, "refused": error.message[:LONGEST_TEXT]}
    about: Json = {"path": path, "size": len(data), "digest": f"sha256:{hashlib.sha256(data).hexdigest()}"}
    kind = mimetypes.guess_type(path)[0] or ""
    text = None if kind.startswith("image/") else _text(data)
    content: Json = {"blob": base64.b64encode(data).decode()} if text is None else {"text": text}
    return {**about, "type": kind, **content}


async def directory(inspection: Inspection, request: Request) -> Any:
    """What the server says is in a folder. It is not verified: `uri` tells which of it the skill lists."""
    async with asking(inspection, request) as client:
        found = await client.directory(request.text("uri"))
    named = [each for each in found if isinstance(each.get("uri"), str)]
    return {"children": [_child(each) for each in named[:MOST_CHILDREN]], "more": len(named[MOST_CHILDREN:])}


def _child(each: Json) -> Json:
    uri, kind = str(each["uri"])[:LONGEST_TEXT], text_of(each.get("mimeType")) or ""
    name = uri.rstrip("/").rpartition("/")[2]
    return {"uri": uri, "name": name, "type": kind[:200], "folder": kind == FOLDER}


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _era(stateless: bool) -> str:
    return "stateless" if stateless else "handshake"


VERBS: Final[Mapping[str, Verb]] = {
    "skills.list": list_skills,
    "skills.read": read,
    "skills.directory": directory,
}
