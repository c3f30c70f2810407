"""The skills of a server (SEP-2640), as a host may use them: nothing is fetched ahead, and everything is verified."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from defserve.client.replies import Json
from defserve.core.json_values import is_array, is_object
from defserve.errors import PeerError
from defserve.protocols.mcp.skill_files import (
    MAX_SKILL_BYTES,
    MAX_SKILL_FILES,
    SKILL_MANIFEST_FILENAME,
    BadFrontmatter,
    is_portable_filename,
    is_same_json,
    read_frontmatter,
)

ReadResource = Callable[[str], Awaitable[list[Json]]]


class LoadedSkill:
    """A skill whose `SKILL.md` was read and verified. Only the files of its entry can be read, verified as well."""

    __slots__ = ("_checked", "_read", "entry", "text")

    def __init__(self, read: ReadResource, entry: Json, checked: CheckedEntry, text: str) -> None:
        self._read, self._checked = read, checked
        self.entry = entry
        """The entry that everything is compared with."""
        self.text = text
        """The whole `SKILL.md`."""

    @property
    def uri(self) -> str:
        return self._checked.uri

    @property
    def frontmatter(self) -> Json:
        return self._checked.frontmatter

    @property
    def paths(self) -> list[str]:
        """Its files, relative to its folder."""
        return list(self._checked.files)

    @property
    def fingerprint(self) -> str:
        """See `CheckedEntry.fingerprint`."""
        return self._checked.fingerprint

    async def read(self, path: str) -> bytes:
        """The bytes of a file. Raises UnverifiedSkill if it is not one of the entry's, or differs from it."""
        file = self._checked.files.get(path)
        if file is None:
            raise UnverifiedSkill(f"{self.uri} lists no file {path!r}")
        return self.text.encode() if path == SKILL_MANIFEST_FILENAME else await _fetch_verified(self._read, file)


async def load_skill(read: ReadResource, entry: Json) -> LoadedSkill:
    """Read the `SKILL.md` of an entry, and nothing else. Raises UnverifiedSkill on any difference."""
    checked = CheckedEntry(entry)
    data = await _fetch_verified(read, checked.files[SKILL_MANIFEST_FILENAME])
    try:
        text = data.decode()
        found = read_frontmatter(text)
    except UnicodeDecodeError:
        raise UnverifiedSkill(f"{checked.uri} is not UTF-8") from None
    except BadFrontmatter as error:
        raise UnverifiedSkill(f"{checked.uri}: {error}") from None
    for name in {**found, **checked.frontmatter}:
        here, there = name in found, name in checked.frontmatter
        if not (here and there and is_same_json(found[name], checked.frontmatter[name])):
            raise UnverifiedSkill(f"{checked.uri}: {name[:200]!r} is not the same in the file and in the list")
    return LoadedSkill(read, entry, checked, text)


async def read_verified_files(read: ReadResource, entry: Json) -> dict[str, bytes]:
    """Every file of a skill by its path. The first one that differs ends it: no other is asked for."""
    skill = await load_skill(read, entry)
    return {path: await skill.read(path) for path in skill.paths}


async def _fetch_verified(read: ReadResource, file: ListedFile) -> bytes:
    contents = await read(file.uri)
    if len(contents) != 1 or not is_object(contents[0]) or contents[0].get("uri") != file.uri:
        raise UnverifiedSkill(f"reading {file.uri} gave something else than its contents")
    data = _bytes(contents[0])
    if data is None:
        raise UnverifiedSkill(f"reading {file.uri} gave neither text nor bytes")
    file.verify(data)
    return data


def _bytes(content: Json) -> bytes | None:
    text: Any = content.get("text")
    blob: Any = content.get("blob")
    try:
        if isinstance(text, str):
            return text.encode()
        return base64.b64decode(blob, validate=True) if isinstance(blob, str) else None
    except ValueError:  # half a character, or no Base64
        return None


# -- A skill as a server lists it: what an entry must have before a file of it is asked for.


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
        if not isinstance(uri, str) or not uri.endswith(f"/{SKILL_MANIFEST_FILENAME}"):
            raise UnverifiedSkill(
                f"a skill has the URI {str(uri)[:200]!r}, which does not end in /{SKILL_MANIFEST_FILENAME}"
            )
        if not is_object(frontmatter) or frontmatter.get("name") != uri.split("/")[-2]:
            raise UnverifiedSkill(f"{uri}: its name in the list is not that of its folder")
        if files == "dynamic":
            raise UnverifiedSkill(f"{uri}: its server lists no digests for it, so its files cannot be verified")
        if not is_array(files) or len(files) > MAX_SKILL_FILES:
            raise UnverifiedSkill(f"{uri}: its entry is not a list of at most {MAX_SKILL_FILES} files")
        self.uri, self.frontmatter = uri, frontmatter
        base = uri.removesuffix(SKILL_MANIFEST_FILENAME)
        self.files: dict[str, ListedFile] = {}
        for file in files:
            listed = _parse_listed_file(file, base)
            if listed.path in self.files:
                raise UnverifiedSkill(f"{uri}: its entry lists {listed.path!r} twice")
            self.files[listed.path] = listed
        if SKILL_MANIFEST_FILENAME not in self.files:
            raise UnverifiedSkill(f"{uri}: its entry does not list {SKILL_MANIFEST_FILENAME}")
        if sum(file.size for file in self.files.values()) > MAX_SKILL_BYTES:
            raise UnverifiedSkill(f"{uri}: its files are larger than {MAX_SKILL_BYTES} bytes together")

    @property
    def fingerprint(self) -> str:
        """Stands for exactly these files. An approval should be kept under it: it ends when one of them changes."""
        whole = "\n".join(sorted(f"{file.uri} {file.digest}" for file in self.files.values()))
        return f"sha256:{hashlib.sha256(whole.encode()).hexdigest()}"


def skill_fingerprint(entry: Json) -> str:
    """`CheckedEntry.fingerprint` of an entry. Raises UnverifiedSkill."""
    return CheckedEntry(entry).fingerprint


def extract_skill_entry(result: Json, uri: str) -> Json:
    """The entry that answers a question for `uri`. Raises UnverifiedSkill if it is that of another skill."""
    entry: Any = result.get("skill")
    if not is_object(entry) or entry.get("uri") != uri:
        raise UnverifiedSkill(f"the server was asked for the skill {uri}, and answered with something else")
    return entry


def _parse_listed_file(file: Any, base: str) -> ListedFile:
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
    if not all(map(is_portable_filename, parts)) or "?" in rest or "#" in rest:
        raise UnverifiedSkill(f"{uri[:200]!r} is not the URI of a file")
    return "/".join(parts)
