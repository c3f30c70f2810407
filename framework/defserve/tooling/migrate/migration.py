"""The way in: programs in, the rewritten programs and a report of each out."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import libcst as cst
from libcst.helpers import get_full_name_for_node

from defserve.errors import UsageError
from defserve.tooling.migrate.name_tables import MigrationNote
from defserve.tooling.migrate.program import ProgramFacts, is_foreign


class Migration(NamedTuple):
    """The program as it is now, and what is left to do by hand."""

    text: str
    notes: list[MigrationNote]


def migrate(source: str, name: str = "server") -> Migration:
    """Rewrite a server of FastMCP or the official SDK. `name` is for one that has none.

    Raises UsageError if libcst is not installed, or if the text is no Python.
    """
    path = Path(f"{name}.py")
    migration = migrate_files({path: source})[path]
    if any(note.text == NOT_PYTHON for note in migration.notes):
        raise UsageError(f"{path}:{migration.notes[0].line}: {NOT_PYTHON}", fix=NOT_PYTHON_FIX)
    return migration


def migrate_files(sources: Mapping[Path, str]) -> dict[Path, Migration]:
    """Rewrite the files of one project. A file may use a server that another one makes.

    A file that is no Python stays as it is, and has a note. Raises UsageError if libcst is not installed.
    """
    try:
        import libcst as cst
    except ImportError:
        raise UsageError("migrate needs libcst, which is not installed", fix='pip install "defserve[dev]"') from None
    from defserve.tooling.migrate.migration import SourceFile, share_returns, share_servers
    from defserve.tooling.migrate.program import collect_facts, unquote_annotations

    done: dict[Path, Migration] = {}
    files: dict[Path, SourceFile] = {}
    for path, source in sources.items():
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            done[path] = Migration(source, [MigrationNote(error.raw_line, NOT_PYTHON)])
            continue
        except RecursionError:
            done[path] = Migration(
                source, [MigrationNote(1, "it is nested too deeply to be read: migrate this file by hand")]
            )
            continue
        module = unquote_annotations(module, collect_facts(module))
        facts = collect_facts(module)
        facts.is_package = path.name == "__init__.py"
        files[path] = SourceFile(source, module, facts)
    share_servers(files)
    share_returns(files)
    return {path: done.get(path) or _migrate_file(files[path], path, source) for path, source in sources.items()}


def _migrate_file(file: SourceFile, path: Path, source: str) -> Migration:
    from libcst.metadata import MetadataWrapper, PositionProvider

    from defserve.tooling.migrate.rewriting import ProgramRewriter

    facts = file.facts
    if not (facts.names or facts.modules or facts.servers):
        return Migration(source, [MigrationNote(1, NOTHING_HERE)])
    wrapper = MetadataWrapper(file.module, unsafe_skip_copy=True)
    if inside := facts.low_level_inside:
        lines = (wrapper.resolve(PositionProvider)[node].start.line for node in inside)
        return Migration(source, [MigrationNote(line, _INSIDE) for line in lines])
    rewriting = ProgramRewriter(facts, path.stem)
    text = wrapper.visit(rewriting).code
    if rewriting.is_incomplete:
        # Half of a low-level server would be none at all.
        text = source
    elif _compiles(source) and not _compiles(text):
        return Migration(
            source, [MigrationNote(1, "rewritten, it would be no valid Python: migrate this file by hand")]
        )
    return Migration(text, sorted(set(rewriting.notes)))


def _compiles(text: str) -> bool:
    """Whether it is a program for the oldest Python that we support."""
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(ast.parse(text, feature_version=OLDEST_PYTHON), "program", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True


OLDEST_PYTHON = (3, 11)
NOTHING_HERE = "nothing of FastMCP or the official SDK is imported here"
NOT_PYTHON = "this is not valid Python"
NOT_PYTHON_FIX = "correct the syntax error, then migrate again"
_INSIDE = "the server is made in a function: move it and its functions to the module, and migrate again"


# -- What one file of a project knows from another: a server that it imports, or that its function is called with.


class SourceFile(NamedTuple):
    """One file of a project, read."""

    text: str
    module: cst.Module
    facts: ProgramFacts


def share_servers(files: Mapping[Path, SourceFile]) -> None:
    """Add to the facts of each file which of its names are servers of other files."""
    while True:
        known = sum(len(file.facts.servers) for file in files.values())
        given: dict[str, set[int | str]] = {}
        # Most files have nothing to do with servers, and going through a file takes long.
        makers = {name for file in files.values() for name in file.facts.makers}
        names = {name.rpartition(".")[2] for file in files.values() for name in file.facts.servers} | makers
        for path, file in files.items():
            if any(name in file.text for name in names):
                file.module.visit(_Imported(path, files, file.facts))
                file.module.visit(_GivenServers(file.facts, given, makers))
        for file in files.values():
            if any(f"def {name}(" in file.text or f"class {name}" in file.text for name in given):
                file.module.visit(_ReceivedServers(file.facts, given))
        if known == sum(len(file.facts.servers) for file in files.values()):
            return


def share_returns(files: Mapping[Path, SourceFile]) -> None:
    """Add to the facts of each file what functions of other files return."""
    everywhere: dict[str, list[cst.BaseExpression]] = {}
    for file in files.values():
        for name, returned in file.facts.returns.items():
            everywhere.setdefault(name, []).extend(returned)
    for file in files.values():
        file.facts.returns = {**everywhere, **file.facts.returns}


class _Imported(cst.CSTVisitor):
    """Finds `from .app import mcp`, `from shop import app` and `import shop.app`."""

    def __init__(self, path: Path, files: Mapping[Path, SourceFile], facts: ProgramFacts) -> None:
        self._path, self._files, self._facts = path, files, facts

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        dotted = get_full_name_for_node(node.module) if node.module is not None else ""
        if dotted is None or (is_foreign(dotted) and not node.relative):
            return
        source = self._find_file(dotted, len(node.relative))
        if isinstance(node.names, cst.ImportStar):
            if source is not None:
                self._facts.servers |= source.facts.servers
            return
        for alias in node.names:
            name, local = alias.evaluated_name, alias.evaluated_alias or alias.evaluated_name
            if source is not None and name in source.facts.servers:
                self._facts.servers.add(local)
            self._add_members(f"{dotted}.{name}".strip("."), len(node.relative), local)

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = alias.evaluated_name
            if not is_foreign(name):
                self._add_members(name, 0, alias.evaluated_alias or name)

    def _add_members(self, dotted: str, level: int, local: str) -> None:
        """The servers of a module that is imported as a whole."""
        if (source := self._find_file(dotted, level)) is not None:
            self._facts.servers |= {f"{local}.{name}" for name in source.facts.servers if "." not in name}

    def _find_file(self, dotted: str, level: int) -> SourceFile | None:
        parts = tuple(part for part in dotted.split(".") if part)
        if level:
            start = self._path.parents[min(level, len(self._path.parents)) - 1]
            places = [start.joinpath(*parts)]
        else:
            # Where the project begins is not known: the last folders of a file's path are what is imported.
            stems = ((path.parent if path.name == "__init__.py" else path.with_suffix("")) for path in self._files)
            places = [stem for stem in stems if parts and stem.parts[-len(parts) :] == parts]
        paths = [path for place in places for path in (place / "__init__.py", place.parent / f"{place.name}.py")]
        return next((self._files[path] for path in paths if path in self._files and path != self._path), None)


class _GivenServers(cst.CSTVisitor):
    """Finds `register(mcp)`, `self.mcp = mcp`, and `mcp = make_server()`.

    `given`: the name of a function → the positions and keywords where it gets a server.
    """

    def __init__(self, facts: ProgramFacts, given: dict[str, set[int | str]], makers: set[str]) -> None:
        self._facts, self._given, self._makers = facts, given, makers

    def visit_Call(self, node: cst.Call) -> None:
        name = (get_full_name_for_node(node.func) or "").rpartition(".")[2]
        for place, arg in enumerate(node.args):
            if name and not arg.star and self._facts.is_server(arg.value):
                self._given.setdefault(name, set()).add(arg.keyword.value if arg.keyword is not None else place)

    def visit_Assign(self, node: cst.Assign) -> None:
        called = get_full_name_for_node(node.value.func) or "" if isinstance(node.value, cst.Call) else ""
        if self._facts.is_server(node.value) or called.rpartition(".")[2] in self._makers:
            names = (get_full_name_for_node(target.target) for target in node.targets)
            self._facts.servers |= {name for name in names if name is not None}


class _ReceivedServers(cst.CSTVisitor):
    """Finds the parameters of functions, and of classes that are made, which get a server."""

    def __init__(self, facts: ProgramFacts, given: Mapping[str, set[int | str]]) -> None:
        self._facts, self._given = facts, given
        self._classes: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._classes.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._classes.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        name = node.name.value
        called = self._classes[-1] if name == "__init__" and self._classes else name
        places = self._given.get(called, set())
        parameters = [*node.params.posonly_params, *node.params.params]
        if parameters and parameters[0].name.value in ("self", "cls"):
            del parameters[0]
        for place, parameter in enumerate([*parameters, *node.params.kwonly_params]):
            received = parameter.name.value
            if received in places or (place in places and place < len(parameters)):
                self._facts.servers.add(received)
