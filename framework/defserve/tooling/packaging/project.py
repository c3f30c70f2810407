"""A project folder, as its `pyproject.toml` describes it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError
from defserve.host.targets import GROUP
from defserve.wire.jsonvalue import as_list, is_array, is_object

MARKER: Final = re.compile(r"mcp-name:\s*([^\s>]+?)(?=\s|-->|$)")


class ProjectFolder(NamedTuple):
    """A project. `about` is its table `[project]`."""

    folder: Path
    about: dict[str, Any]
    backend: str
    allowed: tuple[str, ...] = ()
    """`allow` in `[tool.defserve.package]`: files that are shipped though they look private."""

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def target(self) -> str | None:
        """The server that the project registers: `module:object`."""
        servers: dict[str, str] = self.about.get("entry-points", {}).get(GROUP, {})
        return next(iter(servers.values()), None)

    def document(self, name: str) -> dict[str, Any] | None:
        """A JSON document of the project, or None. Raises UsageError if it is broken."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            value: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(f"{name} is not JSON: {error}", where=str(path)) from None
        if not is_object(value):
            raise UsageError(f"{name} is not an object", where=str(path), fix="write {…} there, or remove the file")
        return value


def read_project(folder: str | Path) -> ProjectFolder:
    """Raises UsageError if the folder has no project."""
    path = Path(folder).resolve() / "pyproject.toml"
    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"there is no project in {path.parent}",
            fix="name a folder with a pyproject.toml; `defserve new` creates one",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"pyproject.toml is broken: {error}", where=str(path)) from None
    about: Any = whole.get("project")
    if not is_object(about) or not isinstance(about.get("name"), str):
        raise UsageError(
            "pyproject.toml has no [project] with a name", where=str(path), fix='write [project] and name = "…" there'
        )
    backend = str(whole.get("build-system", {}).get("build-backend", "setuptools.build_meta"))
    return ProjectFolder(path.parent, about, backend, _allowed(whole, path))


def _allowed(whole: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    found: Any = whole.get("tool", {})
    for name in ("defserve", "package", "allow"):
        found = found.get(name) if is_object(found) else None
    patterns = as_list(found or [])
    if not is_array(found or []) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(
            "[tool.defserve.package] allow is not a list of paths",
            where=str(path),
            fix='write, for example, allow = ["tests/data/*.pem"]',
        )
    return tuple(map(str, patterns))


def normalized(name: str) -> str:
    """The name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def marker_in(readme: str) -> str | None:
    """The registry name that a README claims: `<!-- mcp-name: io.github.me/weather -->`."""
    found = MARKER.search(readme)
    return found[1] if found else None
