"""Adds parts to a project: finds its server, and adds a function and a test.

In each file it changes only the part that it adds. It parses code but never imports or runs it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

from defserve.core.json_values import is_object
from defserve.errors import UsageError

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
    module = parse_source(home.source)
    clashes = [f"already defines {name!r}" for name in part.defines if name in _iter_defined_names(module)]
    clashes += [f"already serves {name!r}" for name in part.registers if name in _iter_registered_names(module)]
    if clashes:
        raise UsageError(f"{home.source} {clashes[0]}", fix="use another name, or remove that one first")
    text = _read_source(home.source)
    return [
        ProjectEdit(home.source, text, insert_code(text, part.code, _end(module, text))),
        _test(home, part),
    ]


def apply_edits(edits: list[ProjectEdit]) -> None:
    for edit in edits:
        edit.path.parent.mkdir(parents=True, exist_ok=True)
        edit.path.write_bytes(edit.after.encode())


def insert_code(text: str, code: str, line: int | None = None) -> str:
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
        names = set(_iter_defined_names(parse_source(usual)))
        if part.test_name in names:
            raise UsageError(f"{usual} already has a {part.test_name}", fix="use another name")
        if names >= NEEDED:
            mark = "" if "pytestmark" in names else f'@pytest.mark.serves("{home.target}")\n'
            text = _read_source(usual)
            return ProjectEdit(usual, text, insert_code(text, mark + part.test))
    own = home.root / "tests" / f"{part.test_name}.py"
    if own.exists():
        raise UsageError(f"{own} already exists", fix="use another name")
    return ProjectEdit(own, "", insert_code(NEW_TEST.format(target=home.target), part.test))


def _iter_defined_names(module: ast.Module) -> Iterator[str]:
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


def _iter_registered_names(module: ast.Module) -> Iterator[str]:
    """Names in registrations: `@server.tool(name="x")`, `@server.resource("x://y")`, `feature_set("x")`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in NAMING:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
            for value in (*named, *node.args[:1]):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def _read_source(path: Path) -> str:
    return path.read_bytes().decode()


# -- The parts that can be added to a server: the code of each kind, and its test.


TEXT: Final = re.compile(r"[^\"\\\x00-\x1f]{1,100}")
FEATURE_SET: Final = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)*")
SIMPLE_VARIABLE: Final = re.compile(r"\{([a-z_]\w*)\}")

TOOL: Final = '''\
@$server.tool
def $name(text: str) -> str:
    """$description

    Args:
        text: The text to work on.
    """
    # TODO: write what it does. For now it returns its argument, and its test expects that.
    return text
'''
TOOL_TEST: Final = """\
def test_$name(client: SyncClient) -> None:
    assert client.call("$name", text="hello") == "hello"
"""
RESOURCE: Final = '''\
@$server.resource("$uri")
def $name($parameters) -> str:
    """$description"""
    return "$name"
'''
RESOURCE_TEST: Final = """\
def test_$name(client: SyncClient) -> None:
    assert client.read_text("$example") == "$name"
"""
PROMPT: Final = '''\
@$server.prompt
def $name(topic: str) -> str:
    """$description"""
    return f"Tell me about {topic}."
'''
PROMPT_TEST: Final = """\
def test_$name(client: SyncClient) -> None:
    (message,) = client.prompt("$name", topic="tea")["messages"]
    assert "tea" in message["content"]["text"]
"""
FEATURE_SET_CODE: Final = '''\
$variable = $server.feature_set("$name", "$description")


@$variable.tool
def ${variable}_status() -> str:
    """Say whether $name works."""
    return "ready"
'''
FEATURE_SET_TEST: Final = """\
def test_${variable}_status(client: SyncClient) -> None:
    assert client.call("${variable}_status") == "ready"
"""


class PartRequest(NamedTuple):
    """What an author wants to add. `server` is the variable, `distribution` the scheme of URIs."""

    kind: str
    name: str
    server: str
    distribution: str = ""
    description: str = ""
    uri: str = ""


class ServerPart(NamedTuple):
    """A part to add: its code and test, the names that it defines, and those that it is served as."""

    code: str
    test: str
    test_name: str
    defines: tuple[str, ...]
    registers: tuple[str, ...]


def make_part(request: PartRequest) -> ServerPart:
    """The part to add. Raises UsageError for a name, URI or description that is not valid."""
    if request.description and not TEXT.fullmatch(request.description):
        raise UsageError(
            "the description is not valid", fix="use at most 100 characters, without double quotes and backslashes"
        )
    return PART_MAKERS[request.kind](request)


def _function(code: str, test: str, request: PartRequest) -> ServerPart:
    """A tool or a prompt: a function that needs only a name."""
    name = _identifier(request)
    values = {"server": request.server, "name": name, "description": request.description or _sentence(name)}
    return _part(code, test, values, f"test_{name}", (name,), (name,))


def _resource(request: PartRequest) -> ServerPart:
    name = _identifier(request)
    uri = request.uri or f"{request.distribution or 'app'}://{name.replace('_', '-')}"
    variables = SIMPLE_VARIABLE.findall(uri)
    if not re.fullmatch(r"[A-Za-z][\w+.-]*:[^\s\"\\{}]*", SIMPLE_VARIABLE.sub("1", uri)):
        raise UsageError(f"{uri!r} is not a URI for a resource", fix='use one like "notes://all" or "notes://{id}"')
    values = {
        "server": request.server,
        "name": name,
        "uri": uri,
        "parameters": ", ".join(f"{variable}: str" for variable in variables),
        "example": SIMPLE_VARIABLE.sub("1", uri),
        "description": request.description or _sentence(name),
    }
    return _part(RESOURCE, RESOURCE_TEST, values, f"test_{name}", (name,), (uri,))


def _feature_set(request: PartRequest) -> ServerPart:
    if not FEATURE_SET.fullmatch(request.name) or request.name[0].isdigit():
        raise UsageError(
            f"{request.name!r} is not a name for a feature set",
            fix='use words with dots between them: "memory.retrieval"',
        )
    variable = _identifier(request._replace(name=request.name.replace(".", "_")))
    values = {
        "server": request.server,
        "name": request.name,
        "variable": variable,
        "description": request.description or _sentence(request.name).removesuffix("."),
    }
    status = f"{variable}_status"
    return _part(
        FEATURE_SET_CODE, FEATURE_SET_TEST, values, f"test_{status}", (variable, status), (request.name, status)
    )


def _part(
    code: str,
    test: str,
    values: Mapping[str, str],
    test_name: str,
    defines: tuple[str, ...],
    registers: tuple[str, ...],
) -> ServerPart:
    return ServerPart(
        Template(code).substitute(values), Template(test).substitute(values), test_name, defines, registers
    )


def _identifier(request: PartRequest) -> str:
    """The name, checked to be one for a function."""
    import builtins
    import keyword

    better = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", request.name)).strip("_").lower()
    if not re.fullmatch(r"[a-z]\w{0,59}", request.name, re.ASCII) or keyword.iskeyword(request.name):
        better = (
            better if re.fullmatch(r"[a-z]\w{0,59}", better) and not keyword.iskeyword(better) else "my_" + request.kind
        )
        raise UsageError(
            f"{request.name!r} cannot be the name of a function",
            fix=f"defserve add {request.kind} {better.replace('-', '_')}",
        )
    if hasattr(builtins, request.name):
        raise UsageError(
            f"{request.name!r} is a builtin of Python that the module may use",
            fix=f"use a longer name: defserve add {request.kind} {request.name}_items",
        )
    return request.name


def _sentence(name: str) -> str:
    """`get_weather` → `Get weather.`"""
    words = re.sub(r"[_.]+", " ", name).strip()
    return f"{words[:1].upper()}{words[1:]}."


PART_MAKERS: Final[Mapping[str, Callable[[PartRequest], ServerPart]]] = {
    "tool": partial(_function, TOOL, TOOL_TEST),
    "resource": _resource,
    "prompt": partial(_function, PROMPT, PROMPT_TEST),
    "feature-set": _feature_set,
}


# -- Finds the server of a project: the module that its `pyproject.toml` names, and the variable in it.


ENTRY_POINT_GROUP: Final = "defserve.servers"
SOURCES: Final = ("src", ".")


class ServerLocation(NamedTuple):
    """Where a server is: its project, file and variable, the target that tests use, and its distribution."""

    root: Path
    source: Path
    variable: str
    target: str
    distribution: str


def find_project_server(start: Path, server: str | None = None) -> ServerLocation:
    """The server of the project around `start`, or the one that `server` names as `path/server.py[:variable]`.

    Raises UsageError if there is none, or more than one.
    """
    project = next((folder for folder in (start, *start.parents) if (folder / "pyproject.toml").is_file()), None)
    if server is not None:
        return _find_named_server(project or start, start, server)
    if project is None:
        raise UsageError(
            f"there is no pyproject.toml in {start} or above it",
            fix="go into the project, create one with `defserve new`, or add --server server.py",
        )
    found = list(dict.fromkeys(_iter_declared_servers(project)))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{project / 'pyproject.toml'} names several servers: {', '.join(home.target for home in found)}",
            fix=f"choose one: --server {found[0].source.relative_to(project)}",
        )
    raise UsageError(
        f"{project / 'pyproject.toml'} names no server of this project",
        fix=f'add [project.entry-points."{ENTRY_POINT_GROUP}"] name = "package.server:server", '
        "or add --server path/server.py",
    )


def server_variables(source: Path) -> list[str]:
    """The names at the top level of a module that `Server(...)` is assigned to."""
    names: list[str] = []
    for node in parse_source(source).body:
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


def parse_source(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_bytes())
    except SyntaxError as error:
        raise UsageError(f"{error.msg}", where=f"{source}:{error.lineno}", fix="correct the file first") from None


def _iter_declared_servers(root: Path) -> Iterator[ServerLocation]:
    servers = _read_table(root, "project", "entry-points", ENTRY_POINT_GROUP)
    scripts = _read_table(root, "project", "scripts")
    name = str(_read_table(root, "project").get("name", ""))
    for pointed in map(str, (*servers.values(), *scripts.values())):
        module, _, attribute = pointed.partition(":")
        variable, source = attribute.partition(".")[0], _file_of(root, module)
        if source is not None and variable in server_variables(source):
            yield ServerLocation(root, source, variable, f"{module}:{variable}", name)


def _file_of(root: Path, module: str) -> Path | None:
    path = Path(*module.split("."))
    tried = [root / folder / name for folder in SOURCES for name in (path.with_suffix(".py"), path / "__init__.py")]
    return next((file for file in tried if file.is_file()), None)


def _find_named_server(root: Path, start: Path, server: str) -> ServerLocation:
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
    return ServerLocation(
        root, source, variable, _target(root, source, variable), str(_read_table(root, "project").get("name", ""))
    )


def _target(root: Path, source: Path, variable: str) -> str:
    for folder in SOURCES:
        base = (root / folder).resolve()
        if source.resolve().is_relative_to(base) and (source.parent / "__init__.py").is_file():
            inside = source.resolve().relative_to(base).with_suffix("").parts
            return f"{'.'.join(inside).removesuffix('.__init__')}:{variable}"
    return f"{source.resolve().relative_to(root.resolve()).as_posix()}:{variable}"


def _read_table(root: Path, *names: str) -> dict[str, Any]:
    """A table of the project's pyproject.toml; empty if it is not there. Raises UsageError for a broken file."""
    path = root / "pyproject.toml"
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", fix="correct the file first") from None
    for depth, name in enumerate(names, 1):
        table = table.get(name, {})
        if not is_object(table):
            raise UsageError(f"{path}: {'.'.join(names[:depth])} is not a table", fix="correct the file first")
    return table
