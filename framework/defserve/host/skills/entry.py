"""A skill as a server lists it: what an entry must have before a file of it is asked for."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from defserve.errors import PeerError
from defserve.host.fields import Json
from defserve.protocols.mcp.skills.folder import MOST_BYTES, MOST_FILES, SKILL_FILE, is_portable
from defserve.wire.jsonvalue import is_array, is_object

DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class UnverifiedSkill(PeerError):
    """A skill is not what its entry says, or its entry says too little. Nothing of it should be used."""


class ListedFile(NamedTuple):
    """A file of a skill. `path` is relative to the folder of the skill."""

    path: str
    uri: str
    digest: str
    size: int

    def verify(self, data: bytes) -> None:
        """Raises UnverifiedSkill if these are not the bytes that were listed."""
        if len(data) != self.size:
            raise UnverifiedSkill(f"{self.uri} has {len(data)} bytes, and its skill lists it with {self.size}")
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if found != self.digest:
            raise UnverifiedSkill(f"{self.uri} has the digest {found}, and its skill lists it with {self.digest}")


class CheckedEntry:
    """An entry of `skills/list` that can be verified."""

    __slots__ = ("uri", "frontmatter", "files")

    def __init__(self, entry: Json) -> None:
        """Raises UnverifiedSkill for an entry that cannot be verified."""
        uri, frontmatter, files = entry.get("uri"), entry.get("frontmatter"), entry.get("resources")
        if not isinstance(uri, str) or not uri.endswith(f"/{SKILL_FILE}"):
            raise UnverifiedSkill(f"a skill has the URI {str(uri)[:200]!r}, which does not end in /{SKILL_FILE}")
        if not is_object(frontmatter) or frontmatter.get("name") != uri.split("/")[-2]:
            raise UnverifiedSkill(f"{uri}: its name in the list is not that of its folder")
        if files == "dynamic":
            raise UnverifiedSkill(f"{uri}: its server lists no digests for it, so its files cannot be verified")
        if not is_array(files) or len(files) > MOST_FILES:
            raise UnverifiedSkill(f"{uri}: its entry is not a list of at most {MOST_FILES} files")
        self.uri, self.frontmatter = uri, frontmatter
        base = uri.removesuffix(SKILL_FILE)
        self.files: dict[str, ListedFile] = {}
        for file in files:
            listed = _listed(file, base)
            if listed.path in self.files:
                raise UnverifiedSkill(f"{uri}: its entry lists {listed.path!r} twice")
            self.files[listed.path] = listed
        if SKILL_FILE not in self.files:
            raise UnverifiedSkill(f"{uri}: its entry does not list {SKILL_FILE}")
        if sum(file.size for file in self.files.values()) > MOST_BYTES:
            raise UnverifiedSkill(f"{uri}: its files are larger than {MOST_BYTES} bytes together")

    @property
    def fingerprint(self) -> str:
        """Stands for exactly these files. An approval should be kept under it: it ends when one of them changes."""
        whole = "\n".join(sorted(f"{file.uri} {file.digest}" for file in self.files.values()))
        return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"


def skill_fingerprint(entry: Json) -> str:
    """`CheckedEntry.fingerprint` of an entry. Raises UnverifiedSkill."""
    return CheckedEntry(entry).fingerprint


def entry_in(result: Json, uri: str) -> Json:
    """The entry that answers a question for `uri`. Raises UnverifiedSkill if it is that of another skill."""
    entry: Any = result.get("skill")
    if not is_object(entry) or entry.get("uri") != uri:
        raise UnverifiedSkill(f"the server was asked for the skill {uri}, and answered with something else")
    return entry


def _listed(file: Any, base: str) -> ListedFile:
    found: Json = file if is_object(file) else {}
    uri, digest, size = found.get("uri"), found.get("digest"), found.get("size")
    if not isinstance(uri, str) or not uri.startswith(base):
        raise UnverifiedSkill(f"{base}: its entry lists {str(uri)[:200]!r}, which is outside of it")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise UnverifiedSkill(f"{uri} has no digest of the form sha256:… in its entry")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise UnverifiedSkill(f"{uri} has no size in its entry")
    return ListedFile(_path(uri, base), uri, digest, size)


def _path(uri: str, base: str) -> str:
    """The path of a file in its skill. It never leads out of a folder that the skill is written to."""
    rest = uri[len(base) :]
    try:
        parts = [unquote(part, errors="strict") for part in rest.split("/")]
    except UnicodeDecodeError:
        parts = [""]
    if not all(map(is_portable, parts)) or "?" in rest or "#" in rest:
        raise UnverifiedSkill(f"{uri[:200]!r} is not the URI of a file")
    return "/".join(parts)
