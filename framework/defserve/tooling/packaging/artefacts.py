"""What is really inside an artefact: every file of a wheel, sdist or bundle, and of archives inside them."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from defserve.errors import UsageError

ZIPS: Final = (".zip", ".whl", ".mcpb", ".egg", ".jar")
TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
DEPTH: Final = 3
"""How deep archives in archives are opened."""
WITHIN: Final = ": "
UNREADABLE: Final = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error)


class ArtefactFile(NamedTuple):
    """A file in an artefact: its path there, its size and its content. A link has a `target` and no content.

    The path of a file in an archive inside the artefact begins with that of the archive: `data/old.zip: a/b.txt`.
    """

    path: str
    size: int
    content: BinaryIO | None
    target: str = ""

    @property
    def own_path(self) -> str:
        """The path in the archive that holds it."""
        return self.path.rpartition(WITHIN)[2]


def files_in(artefact: Path) -> Iterator[ArtefactFile]:
    """The files of an artefact, each to be read before the next. Raises UsageError if it cannot be opened."""
    # An sdist has everything in one folder, which is named after it.
    root = f"{artefact.name.removesuffix('.tar.gz')}/" if artefact.name.endswith(".tar.gz") else ""
    try:
        with artefact.open("rb") as file:
            for found in _opened(ArtefactFile(artefact.name, artefact.stat().st_size, file), DEPTH):
                yield found._replace(path=found.path.removeprefix(root))
    except UNREADABLE as error:
        raise UsageError(f"{artefact.name} cannot be checked: {error}", fix="build it anew") from None


def _opened(file: ArtefactFile, depth: int, inside: str = "") -> Iterator[ArtefactFile]:
    """The file itself, or what it holds if it is an archive."""
    name, content = file.path.lower(), file.content
    if depth < DEPTH or not name.endswith(ZIPS + TARS):
        yield file._replace(path=inside + file.path)
    if content is None or not depth or not name.endswith(ZIPS + TARS):
        return
    within = f"{inside}{file.path}{WITHIN}" if depth < DEPTH else ""
    try:
        for found in _in_zip(content) if name.endswith(ZIPS) else _in_tar(content):
            yield from _opened(found, depth - 1, within)
    except UNREADABLE:
        # Inside an artefact it may be broken on purpose, as a test's data is.
        if depth == DEPTH:
            raise


def _in_zip(file: BinaryIO) -> Iterator[ArtefactFile]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as content:
                    yield ArtefactFile(info.filename.replace("\\", "/"), info.file_size, cast(BinaryIO, content))


def _in_tar(file: BinaryIO) -> Iterator[ArtefactFile]:
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.isreg():
                yield ArtefactFile(member.name, member.size, cast(BinaryIO, archive.extractfile(member)))
            elif member.issym():
                yield ArtefactFile(member.name, 0, None, member.linkname)
