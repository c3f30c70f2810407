"""Parameter types that are judged before the function sees the value. A call with a refused value never runs.

The judgement is part of validation, so it also covers a command inside a list or a model. A refusal is not a validation
error, because pydantic would then try the next branch of a union. It ends the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic_core import CoreSchema, core_schema

from defserve.errors import Rejected, UsageError, explain_arguments
from defserve.guard.verdict import require_allowed

if TYPE_CHECKING:
    from defserve.guard.code.allowed_names import CodeLevel
    from defserve.guard.network import Egress
    from defserve.guard.shell.judgement import ShellMode
    from defserve.guard.uploads import InlineFile, RemoteFile


class ShellCommand:
    """A command line that was judged. Run `.argv`, never `.text`: `subprocess.run(command.argv, env=command.env)`."""

    __slots__ = ("text", "argv", "mode")

    text: str
    argv: tuple[str, ...]
    mode: ShellMode

    def __init__(self, text: str, argv: Sequence[str], mode: ShellMode = "sandbox") -> None:
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "argv", tuple(argv))
        object.__setattr__(self, "mode", mode)

    @property
    def env(self) -> dict[str, str]:
        """Variables to run it with: nothing of the server's own, and git runs no program that a repository names."""
        from defserve.guard.shell.places import make_command_environment

        return make_command_environment(writing=self.mode != "readonly")

    def __setattr__(self, name: str, value: object = None) -> None:
        raise AttributeError(f"{name} cannot be changed: a ShellCommand stays as it was judged")

    __delattr__ = __setattr__

    def __reduce__(self) -> tuple[Any, ...]:
        return ShellCommand, (self.text, self.argv, self.mode)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"ShellCommand({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShellCommand) and self.argv == other.argv

    def __hash__(self) -> int:
        return hash(self.argv)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return Shell().__get_pydantic_core_schema__(source, handler)


@explain_arguments
@dataclass(frozen=True)
class Shell:
    """How a `ShellCommand` is judged: `Annotated[ShellCommand, Shell(allowed={"git": ["status", "log"]})]`."""

    allowed: Mapping[str, Sequence[str] | None] | Collection[str] | None = None
    mode: ShellMode = "sandbox"
    root: str | None = None
    """The absolute path of the directory that commands run in. Without it, every absolute path is outside, and neither
    symbolic links nor the settings of a repository are looked at."""
    only_root: bool = False
    """Whether commands can name nothing outside `root`, not even what everyone may read, such as `/etc/os-release`."""
    trust_repository: bool = False
    """Whether git may run the programs that the repository in `root` names, and read what it points to. Whoever can
    write to its `.git` then runs what they like."""

    @property
    def validator(self) -> str:
        """The name of this guard on the wire, which is its `mode`."""
        return self.mode

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            self.command,
            core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda command: command.text),
        )

    def command(self, text: str) -> ShellCommand:
        """The command, if it may run. Raises Rejected."""
        from defserve.guard.shell import judgement

        judged = judgement.judge(
            text,
            mode=self.mode,
            allowed=self.allowed,
            root=self.root,
            only_root=self.only_root,
            trust_repository=self.trust_repository,
        )
        verdict = require_allowed(judged, "Command refused", self.mode)
        return ShellCommand(text, verdict.argv or (), self.mode)


class PublicUrl(str):
    """An http(s) URL of the public internet. Before the call its host is resolved, and every address judged.

    The name may point elsewhere by the time of your own request. Fetch it with `ctx.http`, which connects to the
    address that was judged.
    """

    __slots__ = ()

    validator: ClassVar[str] = "network_restricted"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return Url().__get_pydantic_core_schema__(source, handler)


@explain_arguments
@dataclass(frozen=True)
class Url:
    """How a `PublicUrl` is judged: `Annotated[PublicUrl, Url(hosts=["api.example.com"])]`."""

    hosts: tuple[str, ...] | Collection[str] | None = None
    ports: tuple[int, ...] | Collection[int] | None = None
    schemes: tuple[str, ...] = ("http", "https")
    private: tuple[str, ...] = ()
    """Exactly `host:port`, for tests and development: anyone who can name a URL can then reach it."""

    validator: ClassVar[str] = "network_restricted"

    def __post_init__(self) -> None:
        # Tuples, because the URLs of a call are looked up by their guard. A str is a collection too, of its characters.
        for name in ("hosts", "ports", "schemes", "private"):
            if (values := getattr(self, name)) is not None:
                values = (values,) if isinstance(values, str | int) else values
                values = tuple(value.lower() if isinstance(value, str) else value for value in values)
                object.__setattr__(self, name, values)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.url, core_schema.str_schema())

    def url(self, text: str) -> PublicUrl:
        """The URL, if it may be fetched. Raises Rejected."""
        from defserve.guard import network

        options: dict[str, Any] = {"schemes": self.schemes, "hosts": self.hosts, "private": self.private}
        if self.ports is not None:
            options["ports"] = self.ports
        url = PublicUrl(require_allowed(network.judge(text, **options), "URL refused", self.validator).url or text)
        if (seen := VALIDATED_URLS.get()) is not None:
            seen.append((url, self))
        return url


VALIDATED_URLS: ContextVar[list[tuple[PublicUrl, Url]] | None] = ContextVar("defserve_urls", default=None)
"""Where the URLs of a call are noted while its arguments are validated: later, in an author's own types and after an
author's own validators, they could no longer be recognised. None: nobody wants them."""


@explain_arguments
@dataclass(frozen=True)
class Within:
    """A path that stays below `root`, symbolic links included: `Annotated[Path, Within("/srv/data")]`.

    Relative paths are taken from the root. The function gets the resolved, absolute path.
    """

    root: str | PathLike[str]

    validator: ClassVar[None] = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            self.path, core_schema.str_schema(), serialization=core_schema.to_string_ser_schema()
        )

    def path(self, text: str) -> Path:
        """The path, if it stays within. Raises Rejected."""
        from defserve.guard import paths

        return paths.resolve(text, Path(self.root))


@explain_arguments
@dataclass(frozen=True)
class Code:
    """Source code that is judged: `Annotated[str, Code(level="strict", allow=["math"])]`."""

    level: CodeLevel = "standard"
    allow: Collection[str] | None = None
    block: Collection[str] | None = None
    max_bytes: int | None = None

    validator: ClassVar[str] = "code_safety"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.source, core_schema.str_schema())

    def source(self, text: str) -> str:
        """The source, if it may run. Raises Rejected."""
        from defserve.guard import code

        verdict = code.judge(text, level=self.level, allow=self.allow, block=self.block, max_bytes=self.max_bytes)
        require_allowed(verdict, "Code validation failed", self.validator)
        return text


class Upload:
    """A file that the caller sends: `Annotated[Upload, FileTypes("image/*", max_size=5_000_000)]`.

    It comes as base64, as a `data:` URI, or as a link that is fetched while you read. Nothing is written to the disk.
    `await upload.read()` gives all bytes; `async for chunk in upload` gives them piece by piece.
    """

    __slots__ = ("name", "media_type", "size", "_source", "_types", "_egress")

    name: str
    """A safe file name without directories; "upload" if the caller said none."""
    media_type: str
    """Found in the first bytes, or else declared. Of a link the bytes are seen when you begin to read."""
    size: int | None
    """In bytes. Of a link it is known when you begin to read, if the server tells."""

    def __init__(self, source: InlineFile | RemoteFile, types: FileTypes, name: str, media_type: str) -> None:
        self._source, self._types, self.name, self.media_type = source, types, name, media_type
        self.size = source.size
        self._egress: Egress | None = None

    async def read(self, max_size: int | None = None) -> bytes:
        """All bytes. Raises Rejected if there are more than `max_size`, or than `FileTypes` allows."""
        from defserve.guard.uploads import make_size_refusal

        limit = self._types.max_size if max_size is None else min(max_size, self._types.max_size)
        content = bytearray()
        async for chunk in self:
            if len(content) + len(chunk) > limit:
                raise make_size_refusal(limit)
            content += chunk
        return bytes(content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes in pieces of at most 64 KiB. A link is fetched anew each time."""
        from defserve.guard.uploads import iter_upload_chunks

        async for chunk in iter_upload_chunks(self, self._source, self._types, self._egress):
            yield chunk

    async def judge_link(self, egress: Egress | None) -> None:
        """Judge a link before the call; later it is fetched by the rules of `egress`. Raises Rejected."""
        from defserve.guard.uploads import check_upload_source

        self._egress = egress
        await check_upload_source(self._source, self._types, egress)

    def __repr__(self) -> str:
        return f"Upload({self.name!r}, {self.media_type!r}, size={self.size})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return FileTypes().__get_pydantic_core_schema__(source, handler)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        return FileTypes().__get_pydantic_json_schema__(core, handler)


class FileTypes:
    """Which files an `Upload` may be: media types such as "application/pdf" or "image/*", and the size in bytes.

    Without media types, any file is accepted.
    """

    __slots__ = ("kinds", "max_size")

    kinds: tuple[str, ...]
    max_size: int

    validator: ClassVar[None] = None

    def __init__(self, *kinds: str, max_size: int = 10_000_000) -> None:
        from defserve.guard.uploads import is_media_range, normalize_media_type

        for kind in kinds:
            if not is_media_range(kind):
                raise UsageError(f"FileTypes: {kind!r} is no media type", fix='write FileTypes("image/png", "text/*")')
        if max_size < 1:
            raise UsageError(f"FileTypes(max_size={max_size!r}) must be at least 1", fix="write max_size=10_000_000")
        self.kinds, self.max_size = tuple(map(normalize_media_type, kinds)), max_size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileTypes) and (self.kinds, self.max_size) == (other.kinds, other.max_size)

    def __hash__(self) -> int:
        return hash((self.kinds, self.max_size))

    def __repr__(self) -> str:
        return f"FileTypes({', '.join(map(repr, self.kinds))}{', ' if self.kinds else ''}max_size={self.max_size})"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            self.upload,
            core_schema.any_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda upload: upload.name),
        )

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        from defserve.guard.uploads import make_upload_schema

        return make_upload_schema(self)

    def upload(self, value: Any) -> Upload:
        """The file in an argument. Raises Rejected for one that is not accepted, ValueError for what is no file."""
        from defserve.guard.uploads import parse_uploaded_file

        if isinstance(value, Upload):
            return value
        source, name, media_type = parse_uploaded_file(value, self)
        upload = Upload(source, self, name, media_type)
        if (seen := VALIDATED_UPLOADS.get()) is not None:
            if len(seen) >= MAX_UPLOADS:
                # Every link costs a look at its addresses.
                raise Rejected("Files refused", [f"there are more than {MAX_UPLOADS} in one call"], guard="upload")
            seen.append(upload)
        return upload


MAX_UPLOADS = 100
"""The files of one call."""

VALIDATED_UPLOADS: ContextVar[list[Upload] | None] = ContextVar("defserve_uploads", default=None)
"""Where the uploads of a call are noted while its arguments are validated, as the URLs are in `VALIDATED_URLS`."""


ARGUMENT_GUARD_CLASSES: tuple[type[Any], ...] = (Shell, Url, Within, Code, FileTypes)
GUARD_BY_GUARDED_TYPE: Mapping[type[Any], type[Any]] = {ShellCommand: Shell, PublicUrl: Url, Upload: FileTypes}
