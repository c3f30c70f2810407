"""`$ref`: what it points to, in the document and, where that is allowed, in others beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urljoin, urlsplit

from defserve.errors import UsageError
from defserve.openapi.documents.loading import Document, read
from defserve.wire.jsonvalue import is_array, is_object

ELSEWHERE: Final = "x-defserve-elsewhere"
MOST_DOCUMENTS: Final = 200
LONGEST_CHAIN: Final = 50


class References:
    """The references inside one document."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self._known: dict[str, Any] = {}

    def at(self, ref: str) -> Any:
        """What a reference points to. Raises UsageError for one that points to nothing."""
        if ref not in self._known:
            self._known[ref] = self._find(ref)
        return self._known[ref]

    def resolved(self, value: Any) -> Any:
        """A value, or what it refers to. What is written beside `$ref` is kept where the target says nothing."""
        beside: dict[str, Any] = {}
        ref: Any = None
        for _ in range(LONGEST_CHAIN):
            if not is_object(value) or not isinstance(ref := value.get("$ref"), str):
                return {**value, **beside} if beside and is_object(value) else value
            beside = {name: item for name, item in value.items() if name in ("summary", "description")} | beside
            value = self.at(ref)
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
            elif is_array(here) and name.isdecimal() and int(name) < len(here):
                here = here[int(name)]
            else:
                raise UsageError(f"the reference {ref[:200]!r} points to nothing", fix="correct the document")
        return here


def bundled(document: Document) -> dict[str, Any]:
    """The document with all others that it refers to inside it. They lie in the same folder or at the same origin."""
    bundle = _Bundle(document)
    root = bundle.rewritten(document.content, _home(document), "")
    assert is_object(root)
    if bundle.found:
        root[ELSEWHERE] = bundle.found
    return root


def _home(document: Document) -> str:
    if document.url is not None:
        return document.url
    return document.file.resolve().as_uri() if document.file is not None else ""


class _Bundle:
    def __init__(self, document: Document) -> None:
        self._home = _home(document)
        self._folder = document.file.resolve().parent if document.file is not None else None
        self._keys: dict[str, str] = {}
        self.found: dict[str, Any] = {}

    def rewritten(self, value: Any, home: str, prefix: str) -> Any:
        """A copy whose references all begin with `#`. `prefix` is the place of this document in the bundle."""
        if is_array(value):
            return [self.rewritten(item, home, prefix) for item in value]
        if not is_object(value):
            return value
        made = {name: self.rewritten(item, home, prefix) for name, item in value.items()}
        if isinstance(ref := value.get("$ref"), str):
            made["$ref"] = self._inside(ref, home, prefix)
        return made

    def _inside(self, ref: str, home: str, prefix: str) -> str:
        place, _, pointer = ref.partition("#")
        if not place:
            return f"#{prefix}{pointer}"
        url = urljoin(home, place) if home else place
        if url == self._home:
            return f"#{pointer}"
        if url not in self._keys:
            if len(self._keys) >= MOST_DOCUMENTS:
                raise UsageError(f"the document refers to more than {MOST_DOCUMENTS} others", fix="bundle them first")
            key = self._keys[url] = str(len(self._keys))
            self.found[key] = self.rewritten(self._read(url, ref), url, f"/{ELSEWHERE}/{key}")
        return f"#/{ELSEWHERE}/{self._keys[url]}{pointer}"

    def _read(self, url: str, ref: str) -> dict[str, Any]:
        there, here = urlsplit(url), urlsplit(self._home)
        if here.scheme in ("http", "https") and (there.scheme, there.netloc) == (here.scheme, here.netloc):
            return read(url).content
        if self._folder is not None and there.scheme == "file" and not there.netloc:
            path = Path(unquote(there.path)).resolve()
            if path.is_relative_to(self._folder):
                return read(path).content
        raise UsageError(
            f"the reference {ref[:200]!r} leads out of where the document is",
            fix="put all files into one folder, or at one origin",
        )
