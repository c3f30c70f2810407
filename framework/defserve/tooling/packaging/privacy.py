"""Refuses to ship what is private. It looks at what is really inside the artefacts, whatever built them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from defserve.errors import UsageError
from defserve.tooling.packaging.artefacts import WITHIN, ArtefactFile, files_in
from defserve.tooling.packaging.private_files import NEVER_SHIPPED, private_kind
from defserve.tooling.packaging.secret_contents import CHUNK, secret_kind

SHOWN: Final = 20
SMALLEST: Final = 4
"""Shorter files are the same by chance."""
MAX_FILES: Final = 100_000
"""How many files of the project are looked at. A link may lead to a whole disk."""
# Kinds whose files are recognised by their content, too, under whatever name a build backend gives them.
COPIED: Final = tuple(NEVER_SHIPPED)[:4]
FIX: Final = (
    "delete or move it, or leave it out of the build: .gitignore or the settings of the build backend, and .mcpbignore "
    "for the bundle. If it may be public: --allow FILE, or allow = [\"FILE\"] under [tool.defserve.package] in "
    "pyproject.toml"
)  # fmt: skip


class PrivateFile(NamedTuple):
    """A file of the project that is not shipped. `kind` says why."""

    path: Path
    shown: str
    kind: str

    def is_copied_in(self, content: BinaryIO) -> bool:
        try:
            with self.path.open("rb") as own:
                return _digest(own) == _digest(content)
        except OSError:
            return False


def refuse_private(folder: Path, artefacts: Sequence[Path], allowed: Sequence[str]) -> None:
    """Raises UsageError that names every private file in the artefacts, and removes the artefacts then."""
    sources = dict[int, list[PrivateFile]]()
    for source in private_files(folder):
        if not is_allowed(source.shown, allowed):
            sources.setdefault(source.path.stat().st_size, []).append(source)
    found = dict[tuple[str, str], list[str]]()
    for artefact in artefacts:
        for path, kind in _private_in(artefact, sources, allowed):
            names = found.setdefault((path, kind), [])
            if artefact.name not in names:
                names.append(artefact.name)
    if not found:
        return
    for artefact in artefacts:
        if artefact.parent != folder:  # a document there is the project's own
            artefact.unlink(missing_ok=True)
    lines = [f"  {path}: {kind} (in {', '.join(names)})" for (path, kind), names in found.items()]
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    head = "nothing was packaged, because these must not be shipped:"
    raise UsageError("\n".join([head, *lines[:SHOWN], *more]), fix=FIX)


def is_allowed(path: str, allowed: Sequence[str], *, in_wheel: bool = False) -> bool:
    """Whether a file is shipped all the same. In a wheel it may lack the first folders of its path, such as `src`."""
    for pattern in allowed:
        parts = pattern.replace("\\", "/").removeprefix("./").split("/")
        forms = ["/".join(parts[start:]) for start in range(len(parts) if in_wheel else 1)]
        if any(fnmatchcase(name, form) for form in forms for name in (path, path.partition(WITHIN)[0])):
            return True
    return False


def private_files(folder: Path) -> Iterator[PrivateFile]:
    """The files of a project that are private by their name, or are links to such files."""
    seen, left = set[str](), MAX_FILES
    for where, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        # A folder is looked at once, however many links lead to it. What version control and caches hold is not copied.
        folders[:] = [] if real in seen else [name for name in folders if not _is_clutter(name)]
        seen.add(real)
        if (left := left - len(files) - len(folders)) < 0:
            return
        for name in files:
            path = Path(where, name)
            shown = path.relative_to(folder).as_posix()
            target = Path(os.path.realpath(path))
            if not target.is_file() or target.stat().st_size < SMALLEST:
                continue
            inside = target.relative_to(folder) if target.is_relative_to(folder) else target
            kind = private_kind(shown) or private_kind(inside.as_posix())
            if kind is not None and kind[0] in COPIED:
                yield PrivateFile(target, shown, kind[0])


def _private_in(
    artefact: Path, sources: dict[int, list[PrivateFile]], allowed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    in_wheel = artefact.name.endswith(".whl")
    for file in files_in(artefact):
        if not is_allowed(file.path, allowed, in_wheel=in_wheel) and (found := _judged(file, sources)):
            yield found


def _judged(file: ArtefactFile, sources: dict[int, list[PrivateFile]]) -> tuple[str, str] | None:
    """The file or its folder, and what it is, if it is private."""
    if by_name := private_kind(file.own_path):
        return file.path.removesuffix(file.own_path) + by_name[1], by_name[0]
    if file.content is None:
        linked = private_kind(file.target)
        return (file.path, f"a link to {linked[0]}, {file.target}") if linked else None
    for source in sources.get(file.size, ()):
        if source.is_copied_in(file.content):
            return file.path, f"a copy of {source.shown}, {source.kind}"
        file.content.seek(0)
    kind = secret_kind(file.content)
    file.content.seek(0)
    return (file.path, f"it holds {kind}") if kind else None


def _digest(file: BinaryIO) -> bytes:
    digest = sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.digest()


def _is_clutter(folder: str) -> bool:
    kind = private_kind(f"{folder}/x")
    return kind is not None and kind[0] not in COPIED
