"""OpenAPI documents: read from an object, a text, a file or an address, in JSON or YAML, with their references."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

from defserve.base.yaml_values import parse_yaml
from defserve.core.json_values import is_array, is_mapping, is_object
from defserve.errors import UsageError

MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a document. GitHub's, one of the largest, has 12 million."""
MAX_DEPTH: Final = 200
MAX_YAML_DEPTH: Final = 1000
"""Of what is read before its depth is judged with words of its own."""
FETCH_SECONDS: Final = 30.0
FIX: Final = "give the document as a dict, a path, an address or a text"


@dataclass(frozen=True, slots=True)
class OpenApiDocument:
    """A document, and where it came from: `url` or `file`, or neither."""

    content: dict[str, Any]
    url: str | None = None
    file: Path | None = None

    @property
    def shown(self) -> str:
        return self.url or (str(self.file) if self.file is not None else "the OpenAPI document")


def load_document(source: Any) -> OpenApiDocument:
    """Read a document. Raises UsageError if it is not there, cannot be read, or is not OpenAPI 3."""
    document = read_document(source)
    version: Any = document.content.get("openapi")
    if not isinstance(version, str) or not version.startswith("3."):
        said = document.content.get("swagger", version)
        raise UsageError(
            f"{document.shown} is not an OpenAPI 3 document"
            + (f": it says version {str(said)[:20]!r}" if said is not None else ': it has no "openapi" field'),
            fix="convert Swagger 2 to OpenAPI 3 first" if "swagger" in document.content else FIX,
        )
    return document


def read_document(source: Any) -> OpenApiDocument:
    """Read any JSON or YAML object."""
    if is_mapping(source):
        try:
            # A copy that nobody else changes, as JSON would give it.
            return OpenApiDocument(parse_document(json.dumps(source, default=str).encode(), "the OpenAPI document"))
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"the OpenAPI document cannot be written as JSON: {error}", fix=FIX) from None
    if isinstance(source, Path):
        return _read_file(source)
    if not isinstance(source, str):
        raise UsageError(f"a {type(source).__name__} is not an OpenAPI document", fix=FIX)
    if source.startswith(("http://", "https://")):
        return OpenApiDocument(parse_document(fetch_document(source), source), url=source)
    if "\n" in source or source.lstrip().startswith("{"):
        return OpenApiDocument(parse_document(source.encode(), "the OpenAPI document"))
    return _read_file(Path(source))


def _read_file(path: Path) -> OpenApiDocument:
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise UsageError(f"{path} is longer than {MAX_DOCUMENT_BYTES} bytes", fix="cut it down to what you serve")
        data = path.read_bytes()
    except OSError as error:
        fix = FIX
        if isinstance(error, FileNotFoundError) and not path.is_absolute():
            # A client starts its servers in a folder of its own choice.
            beside = f"Path(__file__).with_name({path.name!r})"
            fix = f"it is looked for in {Path.cwd()}; for a file beside your code, write {beside}"
        raise UsageError(f"{path} cannot be read: {error.strerror}", fix=fix) from None
    return OpenApiDocument(parse_document(data, str(path)), file=path)


def parse_document(data: bytes, shown: str) -> dict[str, Any]:
    """The object that a text in JSON or YAML holds. Raises UsageError for anything else."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise UsageError(f"{shown} is longer than {MAX_DOCUMENT_BYTES} bytes", fix="cut it down to what you serve")
    try:
        text = data.decode("utf-8-sig")
        if text.lstrip()[:1] in ("{", "["):
            found: Any = json.loads(text)
        else:
            found = _read_yaml(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} is neither JSON nor YAML: {str(error)[:200]}", fix=FIX) from None
    if not is_object(found):
        raise UsageError(f"{shown} holds no object", fix=FIX)
    refuse_deep(found, shown)
    return found


def _read_yaml(text: str) -> Any:
    import yaml

    try:
        return parse_yaml(text, "it", max_depth=MAX_YAML_DEPTH, is_tolerant=True)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def refuse_deep(value: Any, shown: str) -> None:
    """Raises UsageError for an object that is nested so deeply that walking it would fail."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)  # pyright: ignore
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise UsageError(f"{shown} is nested deeper than {MAX_DEPTH} levels", fix="flatten it")


def fetch_document(url: str) -> bytes:
    """The bytes at an address that the author wrote. They may be on this machine; a redirect to elsewhere may not be.

    Works inside and outside of an event loop.
    """
    import asyncio
    from threading import Thread

    outcome: list[bytes | BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(_get_document(url)))
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


async def _get_document(url: str) -> bytes:
    from defserve.guard.http_client import GuardedClient
    from defserve.guard.network import Egress, parse_authority

    try:
        where = str(parse_authority(url))
    except ValueError as error:
        raise UsageError(f"{url[:200]} is not an address: {error}", fix=FIX) from None
    egress = Egress(ports=None, private=[where], max_bytes=MAX_DOCUMENT_BYTES, timeout=FETCH_SECONDS)
    async with GuardedClient(egress) as client:
        response = await client.get(url)
    if response.status_code != 200:
        raise UsageError(f"{url} answers with status {response.status_code}", fix="check the address, or give a file")
    return response.content


# -- `$ref`: what it points to, in the document and, where that is allowed, in others beside it.


ELSEWHERE: Final = "x-defserve-elsewhere"
MAX_DOCUMENTS: Final = 200
MAX_CHAIN_LENGTH: Final = 50


class DocumentReferences:
    """The references inside one document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self._known: dict[str, Any] = {}

    def find_target(self, ref: str) -> Any:
        """What a reference points to. Raises UsageError for one that points to nothing."""
        if ref not in self._known:
            self._known[ref] = self._find(ref)
        return self._known[ref]

    def resolve_value(self, value: Any) -> Any:
        """A value, or what it refers to. What is written beside `$ref` is kept where the target says nothing."""
        beside: dict[str, Any] = {}
        ref: Any = None
        for _ in range(MAX_CHAIN_LENGTH):
            if not is_object(value) or not isinstance(ref := value.get("$ref"), str):
                return {**value, **beside} if beside and is_object(value) else value
            beside = {name: item for name, item in value.items() if name in ("summary", "description")} | beside
            value = self.find_target(ref)
        raise UsageError(f"the reference {ref!r} leads in a circle", fix="correct the document")

    def _find(self, ref: str) -> Any:
        if not ref.startswith("#"):
            raise UsageError(
                f"the reference {ref[:200]!r} leads to another document", fix="say remote_refs=True, or bundle them"
            )
        here: Any = self.root
        for part in ref[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if is_object(here) and name in here:
                here = here[name]
            elif is_array(here) and name.isdecimal() and len(name) < 10 and int(name) < len(here):
                here = here[int(name)]
            else:
                raise UsageError(f"the reference {ref[:200]!r} points to nothing", fix="correct the document")
        return here


def bundle_document(document: OpenApiDocument) -> dict[str, Any]:
    """The document with all others that it refers to inside it. They lie in the same folder or at the same origin."""
    bundle = _Bundle(document)
    root = bundle.rewrite_references(document.content, bundle.home, "")
    assert is_object(root)
    if found := bundle.read_others():
        root[ELSEWHERE] = found
    return root


class _Bundle:
    def __init__(self, document: OpenApiDocument) -> None:
        file = document.file.resolve() if document.file is not None else None
        self._folder = file.parent if file is not None else None
        self.home = document.url or (file.as_uri() if file is not None else "")
        self._keys: dict[str, str] = {}
        self._pending: list[tuple[str, str, str]] = []

    def read_others(self) -> dict[str, Any]:
        """The documents that were referred to, and those that they refer to: one after the other, at any distance."""
        found: dict[str, Any] = {}
        while self._pending:
            key, url, ref = self._pending.pop()
            found[key] = self.rewrite_references(self._read_near_document(url, ref), url, f"/{ELSEWHERE}/{key}")
        return found

    def rewrite_references(self, value: Any, home: str, prefix: str) -> Any:
        """A copy whose references all begin with `#`. `prefix` is the place of this document in the bundle."""
        if is_array(value):
            return [self.rewrite_references(item, home, prefix) for item in value]
        if not is_object(value):
            return value
        made = {name: self.rewrite_references(item, home, prefix) for name, item in value.items()}
        if isinstance(ref := value.get("$ref"), str):
            made["$ref"] = self._inside(ref, home, prefix)
        return made

    def _inside(self, ref: str, home: str, prefix: str) -> str:
        place, _, pointer = ref.partition("#")
        if not place:
            return f"#{prefix}{pointer}"
        try:
            url = urljoin(home, place) if home else place
        except ValueError:
            raise _make_place_error(ref) from None
        if url == self.home:
            return f"#{pointer}"
        if url not in self._keys:
            if len(self._keys) >= MAX_DOCUMENTS:
                raise UsageError(f"the document refers to more than {MAX_DOCUMENTS} others", fix="bundle them first")
            key = self._keys[url] = str(len(self._keys))
            self._pending.append((key, url, ref))
        return f"#/{ELSEWHERE}/{self._keys[url]}{pointer}"

    def _read_near_document(self, url: str, ref: str) -> dict[str, Any]:
        from urllib.request import url2pathname

        folder = self._folder
        try:
            there, here = urlsplit(url), urlsplit(self.home)
            is_file = folder is not None and there.scheme == "file" and not there.netloc
            path = Path(url2pathname(there.path)).resolve() if is_file else None
        except (OSError, ValueError):  # half an IPv6 address, a NUL, half a character
            raise _make_place_error(ref) from None
        if here.scheme in ("http", "https") and (there.scheme, there.netloc) == (here.scheme, here.netloc):
            return read_document(url).content
        if folder is not None and path is not None and path.is_relative_to(folder):
            return read_document(path).content
        raise _make_place_error(ref)


def _make_place_error(ref: str) -> UsageError:
    return UsageError(
        f"the reference {ref[:200]!r} leads out of where the document is",
        fix="put all files into one folder, or at one origin",
    )
