"""The parts of an answer that an author can return. Bytes stay bytes until a protocol encodes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

_FORMATS = {"jpg": "jpeg", "svg": "svg+xml", "mp3": "mpeg", "oga": "ogg", "m4a": "mp4"}

# The MIME type by the first bytes, so that `Image(data)` needs no format.
_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"BM", "image/bmp"),
    (0, b"<svg", "image/svg+xml"),
    (8, b"WAVE", "audio/wav"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"OggS", "audio/ogg"),
    (0, b"fLaC", "audio/flac"),
)


class ContentPart:
    """One block of an answer. Parts are frozen and compare by value."""

    __slots__ = ("annotations", "meta")

    annotations: Mapping[str, Any] | None
    meta: Mapping[str, Any] | None

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _fields(self) -> dict[str, Any]:
        names = [name for kind in reversed(type(self).__mro__) for name in getattr(kind, "__slots__", ())]
        return {name: getattr(self, name) for name in names}

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __setstate__(self, state: tuple[dict[str, Any] | None, dict[str, Any]]) -> None:
        """Used by copy and pickle, which would set each field. An author's subclass may have a `__dict__` too."""
        self._set(**(state[0] or {}), **state[1])

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._fields() == other._fields()  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self._fields().items() if value is not None)
        return f"{type(self).__name__}({shown})"


def _short(value: Any) -> str:
    if isinstance(value, bytes) and len(value) > 16:
        return f"<{len(value)} bytes>"
    return repr(value)


class Text(ContentPart):
    """A block of text."""

    __slots__ = ("text",)

    text: str

    def __init__(
        self, text: str, *, annotations: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
    ) -> None:
        put = object.__setattr__
        put(self, "text", text)
        put(self, "annotations", annotations)
        put(self, "meta", meta)


class _Media(ContentPart):
    """Bytes with a MIME type of one family."""

    __slots__ = ("data", "mime_type")

    data: bytes
    mime_type: str

    def __init__(
        self,
        data: bytes | None = None,
        mime_type: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        family = type(self).__name__.lower()
        if (data is None) == (path is None):
            raise TypeError(f"{type(self).__name__} takes either data= or path=")
        if data is None:
            data = _read_file(path)  # type: ignore[arg-type]
        if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            kind, meant = type(self).__name__, f": say path={data!r:.80}" if isinstance(data, str | os.PathLike) else ""
            raise TypeError(f"{kind} data is bytes, not {type(data).__name__}{meant}")
        data = bytes(data)
        if mime_type is None and format is not None:
            mime_type = f"{family}/{_FORMATS.get(format.lower(), format.lower())}"
        mime_type = mime_type or (mime_type_of(path) if path is not None else None) or _sniff_mime_type(data)
        if mime_type is None:
            raise TypeError(f'cannot tell the MIME type of this {family}: say format="…" or mime_type="…"')
        if "/" not in mime_type:
            raise TypeError(f"{mime_type!r} is not a MIME type: say format={mime_type!r}")
        if not mime_type.startswith(f"{family}/"):
            raise TypeError(f"{type(self).__name__} cannot hold {mime_type}; use File")
        self._set(data=data, mime_type=mime_type, annotations=annotations, meta=meta)


class Image(_Media):
    """A picture: `Image(png, "image/png")`, `Image(data=png, format="png")` or `Image(path="chart.png")`."""

    __slots__ = ()


class Audio(_Media):
    """A sound: `Audio(wav, "audio/wav")`, `Audio(data=wav, format="wav")` or `Audio(path="bell.mp3")`."""

    __slots__ = ()


class Link(ContentPart):
    """A link to a resource that the peer may read."""

    __slots__ = ("uri", "name", "title", "description", "mime_type", "size")

    uri: str
    name: str
    title: str | None
    description: str | None
    mime_type: str | None
    size: int | None

    def __init__(
        self,
        uri: str,
        name: str | None = None,
        *,
        title: str | None = None,
        description: str | None = None,
        mime_type: str | None = None,
        size: int | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        name = name or uri.rstrip("/").rsplit("/", 1)[-1] or uri
        self._set(uri=uri, name=name, title=title, description=description, mime_type=mime_type, size=size)
        self._set(annotations=annotations, meta=meta)


class Embedded(ContentPart):
    """The contents of a resource, text or bytes, inside the answer."""

    __slots__ = ("uri", "text", "data", "mime_type")

    uri: str
    text: str | None
    data: bytes | None
    mime_type: str | None

    def __init__(
        self,
        uri: str,
        *,
        text: str | None = None,
        data: bytes | None = None,
        mime_type: str | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if (text is None) == (data is None):
            raise TypeError(f"{type(self).__name__} takes either text= or data=")
        self._set(uri=uri, text=text, data=data, mime_type=mime_type, annotations=annotations, meta=meta)


class File(Embedded):
    """A file as an embedded resource: `File("report.pdf")` or `File(data=pdf, name="report.pdf")`.

    Without `uri`, its URI is `file:///` and the name alone, so that peers do not learn the server's directories.
    """

    __slots__ = ()

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        data: bytes | str | None = None,
        name: str | None = None,
        mime_type: str | None = None,
        uri: str | None = None,
        annotations: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if (data is None) == (path is None):
            raise TypeError("File takes either a path or data=")
        name = name or (os.path.basename(os.fspath(path)) if path is not None else None)
        if not name:
            raise TypeError("File of data= needs a name=")
        if data is None:
            data = _read_file(path)  # type: ignore[arg-type]
        mime_type = mime_type or mime_type_of(name)
        text = data if isinstance(data, str) else _as_text(data, mime_type)
        mime_type = mime_type or ("text/plain" if text is not None else "application/octet-stream")
        if uri is None:
            from urllib.parse import quote

            uri = f"file:///{quote(name, errors='replace')}"  # the file system may give names that are not UTF-8
        blob = None if text is not None or isinstance(data, str) else bytes(data)
        super().__init__(uri, text=text, data=blob, mime_type=mime_type, annotations=annotations, meta=meta)


class ToolResult:
    """A tool's answer whose text is not its data: `ToolResult("2 orders", data={"orders": 2})`.

    `content` is what models read: text, a content part, or a list of them. `data` is an object for programs: a dict, a
    model or a dataclass. The tool has no output schema.
    """

    __slots__ = ("content", "data")

    def __init__(self, content: str | ContentPart | Sequence[str | ContentPart], data: Any = None) -> None:
        self.content, self.data = content, data

    def __repr__(self) -> str:
        return f"ToolResult({self.content!r}, data={self.data!r})"


def mime_type_of(path: str | os.PathLike[str]) -> str | None:
    """The MIME type a file's name suggests."""
    import mimetypes

    return mimetypes.guess_type(os.fspath(path))[0]


def _sniff_mime_type(data: bytes) -> str | None:
    return next((mime_type for offset, mark, mime_type in _SIGNATURES if data.startswith(mark, offset)), None)


def _as_text(data: bytes, mime_type: str | None) -> str | None:
    textual = mime_type is None or mime_type.startswith("text/") or mime_type.endswith(("json", "xml", "yaml"))
    if not textual or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _read_file(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()
