"""A document from where it is: an object, a text, a file or an address. JSON and YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_mapping, is_object

LONGEST: Final = 64 * 1024 * 1024
"""Bytes of a document. GitHub's, one of the largest, has 12 million."""
DEEPEST: Final = 200
FETCH_SECONDS: Final = 30.0
FIX: Final = "give the document as a dict, a path, an address or a text"


@dataclass(frozen=True, slots=True)
class Document:
    """A document, and where it came from: `url` or `file`, or neither."""

    content: dict[str, Any]
    url: str | None = None
    file: Path | None = None

    @property
    def shown(self) -> str:
        return self.url or (str(self.file) if self.file is not None else "the OpenAPI document")


def load(source: Any) -> Document:
    """Read a document. Raises UsageError if it is not there, cannot be read, or is not OpenAPI 3."""
    document = read(source)
    version: Any = document.content.get("openapi")
    if not isinstance(version, str) or not version.startswith("3."):
        said = document.content.get("swagger", version)
        raise UsageError(
            f"{document.shown} is not an OpenAPI 3 document"
            + (f": it says version {str(said)[:20]!r}" if said is not None else ': it has no "openapi" field'),
            fix="convert Swagger 2 to OpenAPI 3 first" if "swagger" in document.content else FIX,
        )
    return document


def read(source: Any) -> Document:
    """Read any JSON or YAML object."""
    if is_mapping(source):
        return Document(_plain(source))
    if isinstance(source, Path):
        return _of_file(source)
    if not isinstance(source, str):
        raise UsageError(f"a {type(source).__name__} is not an OpenAPI document", fix=FIX)
    if source.startswith(("http://", "https://")):
        return Document(parse(fetched(source), source), url=source)
    if "\n" in source or source.lstrip().startswith("{"):
        return Document(parse(source.encode(), "the OpenAPI document"))
    return _of_file(Path(source))


def _of_file(path: Path) -> Document:
    try:
        if path.stat().st_size > LONGEST:
            raise UsageError(f"{path} is longer than {LONGEST} bytes", fix="cut it down to what you serve")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", fix=FIX) from None
    return Document(parse(data, str(path)), file=path)


def parse(data: bytes, shown: str) -> dict[str, Any]:
    """The object that a text in JSON or YAML holds. Raises UsageError for anything else."""
    if len(data) > LONGEST:
        raise UsageError(f"{shown} is longer than {LONGEST} bytes", fix="cut it down to what you serve")
    try:
        text = data.decode("utf-8-sig")
        if text.lstrip()[:1] in ("{", "["):
            found: Any = json.loads(text)
        else:
            from defserve.openapi.documents.yaml_text import read_yaml

            found = read_yaml(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} is neither JSON nor YAML: {str(error)[:200]}", fix=FIX) from None
    if not is_object(found):
        raise UsageError(f"{shown} holds no object", fix=FIX)
    refuse_deep(found, shown)
    return found


def refuse_deep(value: Any, shown: str) -> None:
    """Raises UsageError for an object that is nested so deeply that walking it would fail."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # pyright: ignore
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise UsageError(f"{shown} is nested deeper than {DEEPEST} levels", fix="flatten it")


def _plain(source: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that nobody else changes, as JSON would give it."""
    try:
        return parse(json.dumps(source, default=str).encode(), "the OpenAPI document")
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"the OpenAPI document cannot be written as JSON: {error}", fix=FIX) from None


def fetched(url: str) -> bytes:
    """The bytes at an address that the author wrote. They may be on this machine; a redirect to elsewhere may not be.

    Works inside and outside of an event loop.
    """
    import asyncio
    from threading import Thread

    outcome: list[bytes | BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(_get(url)))
        except BaseException as error:
            outcome.append(error)

    thread = Thread(target=run, name="defserve-openapi-document")
    thread.start()
    thread.join()
    if isinstance(found := outcome[0], bytes):
        return found
    if isinstance(found, UsageError):
        raise found
    raise UsageError(f"{url} cannot be fetched: {found}", fix="check the address, or give a file") from found


async def _get(url: str) -> bytes:
    from defserve.guard.network.urls import authority_of
    from defserve.net.client import GuardedClient
    from defserve.net.egress import Egress

    try:
        where = str(authority_of(url))
    except ValueError as error:
        raise UsageError(f"{url[:200]} is not an address: {error}", fix=FIX) from None
    egress = Egress(ports=None, private=[where], max_bytes=LONGEST, timeout=FETCH_SECONDS)
    async with GuardedClient(egress) as client:
        response = await client.get(url)
    if response.status_code != 200:
        raise UsageError(f"{url} answers with status {response.status_code}", fix="check the address, or give a file")
    return response.content
