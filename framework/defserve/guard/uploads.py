"""How an `Upload` is read: what a caller sends for a file, judged; and its bytes, in pieces. Imported when one is used.

How it works. An argument holds the file itself (base64, alone or in a `data:` URI) or a link to it. Base64 is checked
as a whole and decoded while it is read, so that the bytes are never in memory twice. A link is judged before the call,
and fetched by the guarded client while it is read: https, no redirects, one deadline, no more bytes than accepted. The
media type is that of the first bytes where they tell it; what is declared counts only where they don't.
"""

from __future__ import annotations

import re
import unicodedata
from binascii import a2b_base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import unquote

from defserve.base.hidden_characters import remove_hidden_characters
from defserve.errors import LimitExceeded, Rejected

if TYPE_CHECKING:
    from defserve.guard.argument_types import FileTypes, Upload
    from defserve.guard.network import Egress

CHUNK_BYTES: Final = 48 * 1024
MAX_CHUNK_BYTES: Final = 64 * 1024
MAX_NAME_LENGTH: Final = 120
MAX_NAME_BYTES: Final = 240
"""File systems count bytes, and most take 255."""
MAX_HEADER_LENGTH: Final = 1_000
MAX_MEDIA_TYPE_LENGTH: Final = 127
SNIFFED_BYTES: Final = 512
DEFAULT_NAME: Final = "upload"
UNKNOWN_TYPE: Final = "application/octet-stream"

_FORM: Final = 'base64, a data: URI with base64, or {"download_url": "https://…", "file_id": "…"}'
_LINK_KEYS: Final = {"download_url": 8_192, "file_id": 512, "mime_type": 256, "file_name": 1_024}

_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_TOKEN: Final = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE: Final = re.compile(rf"{_TOKEN}/{_TOKEN}")
_MEDIA_RANGE: Final = re.compile(rf"\*/\*|{_TOKEN}/(?:\*|{_TOKEN})")


@dataclass(frozen=True, slots=True)
class InlineFile:
    """Base64 in an argument, from `start`. It is known to be valid."""

    text: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A link to a file, and the type that the caller declared for it."""

    url: str
    declared: str | None
    size: None = None


class ParsedFile(NamedTuple):
    """What an argument says of a file."""

    source: InlineFile | RemoteFile
    name: str
    media_type: str


def make_upload_schema(types: FileTypes) -> dict[str, Any]:
    """One schema that all clients can read: base64 for Copilot, an object for ChatGPT, `x-mcp-file` for the rest."""
    kinds = ", ".join(types.kinds) or "any type"
    texts = {name: {"type": "string"} for name in _LINK_KEYS}
    limits: dict[str, Any] = {"accept": list(types.kinds)} if types.kinds else {}
    return {
        "anyOf": [
            {"type": "string", "contentEncoding": "base64"},
            {"type": "object", "properties": texts, "required": ["download_url", "file_id"]},
        ],
        "description": f"A file ({kinds}; at most {types.max_size} bytes): base64, a data: URI, or a link to download",
        "x-mcp-file": {**limits, "maxSize": types.max_size},
    }


def parse_uploaded_file(value: Any, types: FileTypes) -> ParsedFile:
    """The file in an argument. Raises Rejected for one that is not accepted, ValueError for what is no file."""
    if isinstance(value, str):
        return _parse_data_uri(value, types) if value[:5].lower() == "data:" else _parse_base64(value, 0, types)
    if isinstance(value, Mapping):
        return _parse_link(cast("Mapping[Any, Any]", value), types)
    raise ValueError(f"is not a file: write {_FORM}")


def _parse_data_uri(text: str, types: FileTypes) -> ParsedFile:
    comma = text.find(",", 0, MAX_HEADER_LENGTH)
    if comma < 0:
        raise ValueError("is no data: URI: it has no comma after its media type")
    declared, *parameters = text[5:comma].split(";")
    if not parameters or parameters[-1].strip().lower() != "base64":
        raise ValueError("is a data: URI without base64: write data:<media type>;base64,<base64>")
    names = [one.partition("=")[2] for one in parameters if one.strip().lower().startswith(("name=", "filename="))]
    return _parse_base64(text, comma + 1, types, declared or None, unquote(names[0]) if names else None)


def _parse_base64(
    text: str, start: int, types: FileTypes, declared: str | None = None, name: str | None = None
) -> ParsedFile:
    length = len(text) - start
    padding = 2 if text.endswith("==") else int(text.endswith("="))
    size = length // 4 * 3 - padding
    # Its size is looked at first: it costs nothing.
    if size > types.max_size:
        raise make_size_refusal(types.max_size)
    if length == 0:
        raise _refuse("it is empty")
    if length % 4 or not _BASE64.fullmatch(text, start):
        raise ValueError(f"is not base64 with its padding: write {_FORM}")
    declared = _read_media_type(declared)
    first = a2b_base64(text[start : start + SNIFFED_BYTES // 3 * 4 + 4])
    name = sanitize_name(name)
    media_type = _require_accepted(types, declared, name, first)
    return ParsedFile(InlineFile(text, start, size), name, media_type)


def _parse_link(value: Mapping[Any, Any], types: FileTypes) -> ParsedFile:
    texts: dict[str, str | None] = {}
    for key, limit in _LINK_KEYS.items():
        text = value.get(key)
        if text is None and key in ("mime_type", "file_name"):
            texts[key] = None
        elif not isinstance(text, str) or not 0 < len(text) <= limit:
            raise ValueError(f"{key} must be a text of 1 to {limit} characters")
        else:
            texts[key] = text
    declared, name = _read_media_type(texts["mime_type"]), sanitize_name(texts["file_name"])
    if declared is not None and not _is_accepted(types, declared):
        raise _refuse_type(types, declared)
    media_type = declared or _guess_type(name) or UNKNOWN_TYPE
    return ParsedFile(RemoteFile(texts["download_url"] or "", declared), name, media_type)


# -- The bytes of a file, in pieces.


async def check_upload_source(source: InlineFile | RemoteFile, types: FileTypes, egress: Egress | None) -> None:
    """Judge a link by its text and by the addresses of its host. Raises Rejected."""
    if isinstance(source, RemoteFile):
        from defserve.guard.network import judge_url_and_addresses, make_url_refusal

        verdict = await judge_url_and_addresses(source.url, _narrow_egress(source.url, types, egress))
        if not verdict:
            raise make_url_refusal(verdict, "File refused")


async def iter_upload_chunks(
    upload: Upload, source: InlineFile | RemoteFile, types: FileTypes, egress: Egress | None
) -> AsyncGenerator[bytes]:
    """The bytes. Of a link, the first ones are judged before any is given away."""
    if isinstance(source, InlineFile):
        step = CHUNK_BYTES // 3 * 4
        for at in range(source.start, len(source.text), step):
            yield a2b_base64(source.text[at : at + step])
        return
    first = bytearray()
    is_judged = False
    async with aclosing(_fetch_chunks(upload, source, types, egress)) as chunks:
        async for chunk in chunks:
            if is_judged:
                yield chunk
                continue
            first += chunk
            if len(first) >= SNIFFED_BYTES:
                upload.media_type = _require_accepted(types, source.declared, upload.name, bytes(first))
                is_judged = True
                yield bytes(first)
    if not is_judged:
        if not first:
            raise _refuse("it is empty")
        upload.media_type = _require_accepted(types, source.declared, upload.name, bytes(first))
        yield bytes(first)


async def _fetch_chunks(
    upload: Upload, source: RemoteFile, types: FileTypes, egress: Egress | None
) -> AsyncGenerator[bytes]:
    from defserve.guard.http_client import GuardedClient, load_httpx

    httpx = load_httpx("an Upload that comes as a link")
    try:
        async with (
            GuardedClient(_narrow_egress(source.url, types, egress)) as client,
            client.stream("GET", source.url) as response,
        ):
            if response.status_code != 200:
                moved = " (redirects are not followed)" if response.is_redirect else ""
                raise _refuse(f"its link answered {response.status_code}{moved}", "a link that is still valid")
            length = response.headers.get("content-length", "")
            upload.size = int(length) if length.isdecimal() else None
            chunks = cast("AsyncIterator[bytes]", response.aiter_bytes(MAX_CHUNK_BYTES))
            async for chunk in chunks:
                yield chunk
    except LimitExceeded as error:
        if error.data.get("limit") == "max_bytes":
            raise make_size_refusal(types.max_size) from None
        raise _refuse("it was not downloaded in time", "a link that answers faster, or a smaller file") from None
    except httpx.HTTPError as error:
        raise _refuse(f"its link cannot be read ({type(error).__name__})", "a link that is still valid") from None


def _narrow_egress(url: str, types: FileTypes, egress: Egress | None) -> Egress:
    """The server's rules, for one file. Only a host that it lists as private may be asked without TLS."""
    from defserve.guard.network import Egress, parse_authority

    egress = egress or Egress()
    try:
        where = parse_authority(url)
        is_private = where.scheme == "http" and str(where) in egress.private
    except ValueError:
        is_private = False  # it is refused as it is judged
    schemes = ("http",) if is_private else ("https",)
    return replace(egress, schemes=schemes, max_bytes=types.max_size, redirects=0)


# -- Media types: what is accepted, what was declared, and what the first bytes say.

# Offset, bytes, type. A type in this table is believed only if its bytes are there.
_SIGNATURES: Final[tuple[tuple[int, bytes, str], ...]] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"PK\x05\x06", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar"),
    (0, b"\x7fELF", "application/x-elf"),
    (0, b"MZ", "application/vnd.microsoft.portable-executable"),
    (8, b"WAVE", "audio/wav"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
)  # fmt: skip
_SNIFFED_TYPES: Final = frozenset(kind for _, _, kind in _SIGNATURES)
# Each part is matched in one way only, so that many comments or blanks cost no time.
_MARKUP: Final = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:<\?xml[^>]*+>\s*+)?+(?:<!--(?>.*?-->)\s*+)*+<(!doctype\s++html|html|svg)", re.I | re.S
)

# Found type → declared ones that it may be: documents that are archives inside, and texts that begin with a tag.
_NARROWER_TYPES: Final = {
    "application/zip": re.compile(
        r"application/(?:vnd\.(?:openxmlformats|oasis|ms-)[a-z.0-9-]+|java-archive|[a-z.-]+\+zip)"
    ),
    "text/html": re.compile(r"text/.+"),
}
_TEXTS: Final = re.compile(r"text/.+|application/(?:json|xml|yaml|.+\+json|.+\+xml)")
_UTF16_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")
_SAME_TYPES: Final = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "application/x-pdf": "application/pdf",
    "application/x-zip-compressed": "application/zip",
    "application/x-gzip": "application/gzip",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "application/x-sqlite3": "application/vnd.sqlite3",
}


def is_media_range(text: str) -> bool:
    """Whether a text is a media type, or stands for several, as "image/*" does."""
    return len(text) <= MAX_MEDIA_TYPE_LENGTH and _MEDIA_RANGE.fullmatch(text) is not None


def normalize_media_type(text: str) -> str:
    """A media type in lower case, by its usual name: "image/jpeg" for "image/jpg"."""
    return _SAME_TYPES.get(text.lower(), text.lower())


def _is_accepted(types: FileTypes, media_type: str) -> bool:
    family = media_type.partition("/")[0] + "/*"
    return not types.kinds or any(kind in ("*/*", family, media_type) for kind in types.kinds)


def _require_accepted(types: FileTypes, declared: str | None, name: str, first: bytes) -> str:
    """The media type of a file with these first bytes. Raises Rejected if it is not accepted, or not what it says."""
    found = _sniff_type(first)
    if found is None:
        if declared in _SNIFFED_TYPES:
            raise _refuse(f"it says {declared}, but its bytes are something else", _format_accepted(types))
        is_text = _is_text(first)
        if declared is not None and _TEXTS.fullmatch(declared) and not is_text:
            raise _refuse(f"it says {declared}, but its bytes are no text", _format_accepted(types))
        guessed = _guess_type(name) if is_text else None
        usual = guessed if guessed not in _SNIFFED_TYPES else None
        media_type = declared or usual or ("text/plain" if is_text else UNKNOWN_TYPE)
    elif declared is not None and (narrower := _NARROWER_TYPES.get(found)) and narrower.fullmatch(declared):
        media_type = declared
    else:
        media_type = found
    if not _is_accepted(types, media_type):
        raise _refuse_type(types, media_type)
    return media_type


def _sniff_type(first: bytes) -> str | None:
    for offset, mark, media_type in _SIGNATURES:
        # Two letters may also begin a text, and what is at an offset is in a RIFF file.
        is_sure = first.startswith(b"RIFF") if offset else len(mark) > 2 or not _is_text(first)
        if is_sure and first.startswith(mark, offset):
            return media_type
    if (markup := _MARKUP.match(first[:SNIFFED_BYTES])) is not None:
        return "image/svg+xml" if markup[1].lower() == b"svg" else "text/html"
    return None


def _is_text(first: bytes) -> bool:
    if first.startswith(_UTF16_MARKS):
        return True
    # The last character may be cut in the middle.
    return b"\0" not in first and "\N{REPLACEMENT CHARACTER}" not in first.decode(errors="replace")[:-4]


def _read_media_type(text: str | None) -> str | None:
    """A declared type in its usual form. One that says nothing counts as none. Raises ValueError."""
    if text is None:
        return None
    media_type = normalize_media_type(text.partition(";")[0].strip())
    if len(media_type) > MAX_MEDIA_TYPE_LENGTH or not _MEDIA_TYPE.fullmatch(media_type):
        raise ValueError("has a media type that is none: write one such as image/png")
    return None if media_type == UNKNOWN_TYPE else media_type


def _guess_type(name: str) -> str | None:
    import mimetypes

    return mimetypes.guess_type(name)[0]


# -- Names


_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9]) *(?:\..*)?", re.I)
_UNSAFE: Final = re.compile(r'[<>:"|?*%$`;&\'{}~!#]')


def sanitize_name(text: str | None) -> str:
    """A name that is safe on every system: no directory, nothing invisible, not hidden, not reserved, not long."""
    plain = unicodedata.normalize("NFKC", (text or "")[:1_024]).replace("\\", "/").rpartition("/")[2]
    text = "".join(" " if one.isspace() else one for one in plain if unicodedata.category(one)[0] != "C")
    text = _UNSAFE.sub("_", remove_hidden_characters(text)).strip(". -")
    if len(text) > MAX_NAME_LENGTH or len(text.encode()) > MAX_NAME_BYTES:
        stem, dot, suffix = text.rpartition(".")
        stem, suffix = (stem, dot + suffix) if stem and len(suffix) <= 10 else (text, "")
        stem = (
            stem[: MAX_NAME_LENGTH - len(suffix)]
            .encode()[: MAX_NAME_BYTES - len(suffix.encode())]
            .decode("utf-8", "ignore")
        )
        text = f"{stem}{suffix}".rstrip(". -")
    return f"_{text}" if _RESERVED.fullmatch(text) else text or DEFAULT_NAME


# -- Refusals


def make_size_refusal(limit: int) -> Rejected:
    """The refusal of a file that is too large."""
    return _refuse(f"it is larger than {limit} bytes", f"a file of at most {limit} bytes")


def _refuse_type(types: FileTypes, media_type: str) -> Rejected:
    return _refuse(f"it is {media_type}", _format_accepted(types))


def _format_accepted(types: FileTypes) -> str:
    return f"a file of the type {' or '.join(types.kinds)}" if types.kinds else "a file with its true type"


def _refuse(problem: str, fix: str = "a file with content") -> Rejected:
    return Rejected("File refused", [problem], {"nearest": [fix]}, guard="upload")
