"""The files of the page, each read and compressed once."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}


class Asset(NamedTuple):
    """One file. `packed` is its content compressed with gzip."""

    kind: str
    content: bytes
    packed: bytes


@cache
def assets() -> dict[str, Asset]:
    """Path to file. `/` is the page itself. Files of other kinds (licences) are not served."""
    found: dict[str, Asset] = {}
    _collect(Path(__file__).parents[1] / "page", "/", found)
    found["/"] = found.pop("/index.html")
    return found


def _collect(folder: Path, path: str, found: dict[str, Asset]) -> None:
    for each in folder.iterdir():
        if each.is_dir():
            _collect(each, f"{path}{each.name}/", found)
        elif kind := KINDS.get(each.suffix):
            content = each.read_bytes()
            found[path + each.name] = Asset(kind, content, gzip.compress(content, 9, mtime=0))
