"""An MCPB bundle: a zip of the project with its manifest. The same project gives the same bytes."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from defserve.tooling.packaging.private_files import private_kind

EPOCH: Final = (1980, 1, 1, 0, 0, 0)
MODE: Final = 0o100644

# Never part of a bundle, like everything that is private and what `.mcpbignore` names.
LEFT_OUT: Final = (
    ".*", "__pycache__", "*.pyc", "*.pyo", "*.egg-info", "venv", "env", "node_modules", "dist", "build", "*.mcpb",
    "manifest.json",
)  # fmt: skip


def write_bundle(
    path: Path, folder: Path, manifest: dict[str, Any], is_allowed: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Write the bundle and return the names of its files. A private file is in it only if it is allowed."""
    files = sorted(name for name in bundled(folder) if private_kind(name) is None or is_allowed(name))
    draft = path.with_name(f"{path.name}.new")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "manifest.json", (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())
        for name in files:
            _add(archive, name, (folder / name).read_bytes())
    os.replace(draft, path)
    return ["manifest.json", *files]


def bundled(folder: Path) -> Iterator[str]:
    """The files of a project that belong in its bundle. Links are left out, because they may point anywhere."""
    ignored = [*LEFT_OUT, *_ignored(folder / ".mcpbignore")]
    for where, folders, files in os.walk(folder):
        below = Path(where).relative_to(folder)
        folders[:] = [
            name
            for name in folders
            if not _matches((below / name).as_posix(), ignored) and not (Path(where) / name).is_symlink()
        ]
        for name in files:
            if not _matches((below / name).as_posix(), ignored) and not (Path(where) / name).is_symlink():
                yield (below / name).as_posix()


def _ignored(path: Path) -> list[str]:
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line.strip("/") for line in lines if line and not line.startswith("#")]


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """A pattern without a slash matches names, one with a slash matches paths from the folder of the project."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.external_attr = MODE << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)
