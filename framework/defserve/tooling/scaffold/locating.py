"""Finds the server of a project: the module that its `pyproject.toml` names, and the variable in it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError

GROUP: Final = "defserve.servers"
SOURCES: Final = ("src", ".")


class ServerLocation(NamedTuple):
    """Where a server is: its project, file and variable, the target that tests use, and its distribution."""

    root: Path
    source: Path
    variable: str
    target: str
    distribution: str


def locate(start: Path, server: str | None = None) -> ServerLocation:
    """The server of the project around `start`, or the one that `server` names as `path/server.py[:variable]`.

    Raises UsageError if there is none, or more than one.
    """
    project = next((folder for folder in (start, *start.parents) if (folder / "pyproject.toml").is_file()), None)
    if server is not None:
        return _named(project or start, start, server)
    if project is None:
        raise UsageError(
            f"there is no pyproject.toml in {start} or above it",
            fix="go into the project, create one with `defserve new`, or add --server server.py",
        )
    found = list(dict.fromkeys(_declared(project)))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{project / 'pyproject.toml'} names several servers: {', '.join(home.target for home in found)}",
            fix=f"choose one: --server {found[0].source.relative_to(project)}",
        )
    raise UsageError(
        f"{project / 'pyproject.toml'} names no server of this project",
        fix=f'add [project.entry-points."{GROUP}"] name = "package.server:server", or add --server path/server.py',
    )


def server_variables(source: Path) -> list[str]:
    """The names at the top level of a module that `Server(...)` is assigned to."""
    names: list[str] = []
    for node in parsed(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=called)):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=called)):
                pass
            case _:
                continue
        if isinstance(called, ast.Name | ast.Attribute) and ast.unparse(called).rpartition(".")[2] == "Server":
            names.append(name)
    return names


def parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes())
    except SyntaxError as error:
        raise UsageError(f"{error.msg}", where=f"{source}:{error.lineno}", fix="correct the file first") from None


def _declared(root: Path) -> Iterator[ServerLocation]:
    project = _project(root)
    servers: Mapping[str, str] = project.get("entry-points", {}).get(GROUP, {})
    scripts: Mapping[str, str] = project.get("scripts", {})
    for pointed in (*servers.values(), *scripts.values()):
        module, _, attribute = pointed.partition(":")
        variable, source = attribute.partition(".")[0], _file_of(root, module)
        if source is not None and variable in server_variables(source):
            yield ServerLocation(root, source, variable, f"{module}:{variable}", str(project.get("name", "")))


def _file_of(root: Path, module: str) -> Path | None:
    path = Path(*module.split("."))
    tried = [root / folder / name for folder in SOURCES for name in (path.with_suffix(".py"), path / "__init__.py")]
    return next((file for file in tried if file.is_file()), None)


def _named(root: Path, start: Path, server: str) -> ServerLocation:
    file, _, variable = server.partition(".py:")
    source = start / (file if file.endswith(".py") else f"{file}.py")
    if not source.is_file():
        raise UsageError(f"there is no file {source}", fix="use --server path/server.py, or path/server.py:name")
    known = server_variables(source)
    if (variable or "server") not in known and (variable or len(known) != 1):
        there = f"it has {', '.join(known)}" if known else "it has no `name = Server(...)`"
        raise UsageError(
            f"{source} has no server {variable or 'server'!r}", fix=f"{there}; use --server {file}.py:NAME"
        )
    variable = variable or ("server" if "server" in known else known[0])
    return ServerLocation(root, source, variable, _target(root, source, variable), str(_project(root).get("name", "")))


def _target(root: Path, source: Path, variable: str) -> str:
    for folder in SOURCES:
        base = (root / folder).resolve()
        if source.resolve().is_relative_to(base) and (source.parent / "__init__.py").is_file():
            inside = source.resolve().relative_to(base).with_suffix("").parts
            return f"{'.'.join(inside).removesuffix('.__init__')}:{variable}"
    return f"{source.resolve().relative_to(root.resolve()).as_posix()}:{variable}"


def _project(root: Path) -> dict[str, Any]:
    path = root / "pyproject.toml"
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}", fix="correct the file first") from None
