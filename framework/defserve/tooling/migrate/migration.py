"""The way in: programs in, the rewritten programs and a report of each out."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from defserve.errors import UsageError
from defserve.tooling.migrate.name_tables import (
    CLIENT_CONTENT,
    FOREIGN_CLIENTS,
    FOREIGN_SERVER_CLASSES,
    MigrationNote,
)

if TYPE_CHECKING:
    from defserve.tooling.migrate.rewriting import SourceFile


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
    if any(note.text == INVALID_PYTHON_PROBLEM for note in migration.notes):
        raise UsageError(f"{path}:{migration.notes[0].line}: {INVALID_PYTHON_PROBLEM}", fix=INVALID_PYTHON_FIX)
    return migration


def migrate_files(sources: Mapping[Path, str]) -> dict[Path, Migration]:
    """Rewrite the files of one project. A file may use a server that another one makes.

    A file that is no Python stays as it is, and has a note. Raises UsageError if libcst is not installed.
    """
    try:
        import libcst as cst
    except ImportError:
        raise UsageError("migrate needs libcst, which is not installed", fix='pip install "defserve[dev]"') from None
    from defserve.tooling.migrate.calls import find_plain_functions, find_registered_names
    from defserve.tooling.migrate.program import collect_program_facts, unquote_annotations
    from defserve.tooling.migrate.rewriting import SourceFile, spread_return_facts, spread_server_facts

    done: dict[Path, Migration] = {}
    files: dict[Path, SourceFile] = {}
    for path, source in sources.items():
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            done[path] = Migration(source, [MigrationNote(error.raw_line, INVALID_PYTHON_PROBLEM)])
            continue
        except RecursionError:
            done[path] = Migration(
                source, [MigrationNote(1, "it is nested too deeply to be read: migrate this file by hand")]
            )
            continue
        facts = collect_program_facts(module)
        if facts.names:
            module = unquote_annotations(module, facts)
            facts = collect_program_facts(module)
        names = set(facts.names.values())
        if names & FOREIGN_CLIENTS and not names & FOREIGN_SERVER_CLASSES:
            facts.left = CLIENT_CONTENT
        facts.is_package = path.name == "__init__.py"
        files[path] = SourceFile(source, module, facts)
    spread_server_facts(files)
    spread_return_facts(files)
    for path, file in files.items():
        if "async def" in file.text and file.facts.servers:
            elsewhere = [other.text for each, other in files.items() if each != path]
            file.facts.plain = find_plain_functions(file.module, file.facts.servers, elsewhere)
        for name, kind in find_registered_names(file.module, file.facts.servers).items() if file.facts.servers else ():
            _mark_registered(name, kind, file, files.values())
    done |= {path: _migrate_file(file, path, file.text) for path, file in files.items()}
    _keep_parts_of_low_level_servers(files, done)
    return {path: done[path] for path in sources}


def _mark_registered(name: str, kind: str, file: SourceFile, files: Iterable[SourceFile]) -> None:
    """The function of that name in the file that registers it, or in another one; if there are two, it is neither."""
    for candidates in ((file,), files):
        functions = [(each, node) for each in candidates for node in each.facts.functions.get(name, ())]
        if functions:
            if len(functions) == 1:
                functions[0][0].facts.registered[functions[0][1]] = kind
            return


def _keep_parts_of_low_level_servers(files: Mapping[Path, SourceFile], done: dict[Path, Migration]) -> None:
    """If a low-level server is left as it is, so is what its other files return: it could not send ours."""
    is_left = any(
        (file.facts.low_level or file.facts.low_level_inside) and done[path].text == file.text
        for path, file in files.items()
    )
    if not is_left or any(file.facts.servers for file in files.values()):
        return
    for path, file in files.items():
        if done[path].text != file.text and not file.facts.low_level:
            done[path] = Migration(file.text, [MigrationNote(1, _PART_OF_LOW_LEVEL)])


def _migrate_file(file: SourceFile, path: Path, source: str) -> Migration:
    from libcst.metadata import MetadataWrapper, PositionProvider

    from defserve.tooling.migrate.rewriting import ProgramRewriter

    facts = file.facts
    if not (facts.names or facts.modules or facts.servers or facts.server_classes or facts.registered):
        return Migration(source, [MigrationNote(1, NOTHING_TO_MIGRATE)])
    wrapper = MetadataWrapper(file.module, unsafe_skip_copy=True)
    if inside := facts.low_level_inside:
        lines = (wrapper.resolve(PositionProvider)[node].start.line for node in inside)
        return Migration(source, [MigrationNote(line, _INSIDE) for line in lines])
    rewriting = ProgramRewriter(facts, path.stem)
    text = wrapper.visit(rewriting).code
    if problems := rewriting.low_level_problems:
        # Half of a low-level server would be none at all. What was done to the rest is not done then.
        return Migration(source, sorted(set(problems)))
    if _compiles(source) and not _compiles(text):
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
NOTHING_TO_MIGRATE = "nothing of FastMCP or the official SDK is imported here"
INVALID_PYTHON_PROBLEM = "this is not valid Python"
INVALID_PYTHON_FIX = "correct the syntax error, then migrate again"
_PART_OF_LOW_LEVEL = "left as it is, like the low-level server of this project: migrate them together"
_INSIDE = "the server is made in a function: move it and its functions to the module, and migrate again"
