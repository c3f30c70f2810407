"""Adds a part to a project: a function in the module of the server, and a test. All other text stays as it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from defserve.errors import UsageError
from defserve.tooling.scaffold.locating import ServerLocation, parsed
from defserve.tooling.scaffold.parts import ServerPart

NEW_TEST: Final = """\
import pytest
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{target}")
"""
NEEDED: Final = {"pytest", "SyncClient"}
NAMING: Final = ("tool", "resource", "prompt", "feature_set", "add_tool", "add_resource", "add_prompt")


class ProjectEdit(NamedTuple):
    """A file, its text now (empty if it is new), and its text after the edit."""

    path: Path
    before: str
    after: str


def plan_edits(home: ServerLocation, part: ServerPart) -> list[ProjectEdit]:
    """The edits that add a part. Raises UsageError if its name is taken."""
    module = parsed(home.source)
    _refuse_clashes(home.source, module, part)
    text = _read(home.source)
    return [
        ProjectEdit(home.source, text, inserted(text, part.code, _end(module, text))),
        _test(home, part),
    ]


def apply(edits: list[ProjectEdit]) -> None:
    for edit in edits:
        edit.path.parent.mkdir(parents=True, exist_ok=True)
        edit.path.write_bytes(edit.after.encode())


def inserted(text: str, code: str, line: int | None = None) -> str:
    """The text with code inserted before a line, or at the end, with two empty lines around it."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    cut = len(lines) if line is None else line - 1
    before, after = "\n".join(lines[:cut]).rstrip(), "\n".join(lines[cut:]).strip("\n")
    return "\n\n\n".join(filter(None, (before, code.rstrip(), after))).replace("\n", newline) + newline


def _end(module: ast.Module, text: str) -> int | None:
    """The line of `if __name__ == "__main__":`, or of the comment above it; None without one."""
    lines = text.splitlines()
    for node in module.body:
        if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
            line = node.lineno
            while line > 1 and lines[line - 2].startswith("#"):
                line -= 1
            return line
    return None


def _test(home: ServerLocation, part: ServerPart) -> ProjectEdit:
    """The test is added to the tests of the module if they have the imports it needs, else to a new file."""
    usual = home.root / "tests" / f"test_{home.source.stem}.py"
    if usual.is_file():
        names = set(_defined(parsed(usual)))
        if part.test_name in names:
            raise UsageError(f"{usual} already has a {part.test_name}", fix="use another name")
        if names >= NEEDED:
            mark = "" if "pytestmark" in names else f'@pytest.mark.serves("{home.target}")\n'
            text = _read(usual)
            return ProjectEdit(usual, text, inserted(text, mark + part.test))
    own = home.root / "tests" / f"{part.test_name}.py"
    if own.exists():
        raise UsageError(f"{own} already exists", fix="use another name")
    return ProjectEdit(own, "", inserted(NEW_TEST.format(target=home.target), part.test))


def _refuse_clashes(source: Path, module: ast.Module, part: ServerPart) -> None:
    for name in part.defines:
        if name in _defined(module):
            raise UsageError(f"{source} already defines {name!r}", fix="use another name, or remove that one first")
    for name in part.registers:
        if name in _registered(module):
            raise UsageError(f"{source} already serves {name!r}", fix="use another name, or remove that one first")


def _defined(module: ast.Module) -> Iterator[str]:
    """Every name that a module defines at its top level."""
    for node in module.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in names)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
                yield from (name.id for name in names if isinstance(name.ctx, ast.Store))
            case _:
                pass


def _registered(module: ast.Module) -> Iterator[str]:
    """Names in registrations: `@server.tool(name="x")`, `@server.resource("x://y")`, `feature_set("x")`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMING:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
            for value in (*named, *node.args[:1]):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def _read(path: Path) -> str:
    return path.read_bytes().decode()
