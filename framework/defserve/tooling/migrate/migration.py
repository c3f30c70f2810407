"""The way in: a program in, the rewritten program and a report out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from defserve.errors import UsageError
from defserve.tooling.migrate.name_tables import Note

if TYPE_CHECKING:
    from defserve.tooling.migrate.program import Facts


class Migration(NamedTuple):
    """The program as it is now, and what is left to do by hand."""

    text: str
    notes: list[Note]


def migrate(source: str, name: str = "server") -> Migration:
    """Rewrite a server of FastMCP or the official SDK. `name` is for one that has none.

    Raises UsageError if libcst is not installed, or if the text is no Python.
    """
    try:
        import libcst as cst
    except ImportError:
        raise UsageError(
            "migrate needs libcst, which is not installed", fix='pip install "defserve[migrate]"'
        ) from None
    from libcst.metadata import MetadataWrapper, PositionProvider

    from defserve.tooling.migrate.program import collect_facts, unquote_annotations
    from defserve.tooling.migrate.rewriting import Rewriting

    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise UsageError(f"line {error.raw_line}: it is not Python", fix="correct it first") from None
    if not _is_theirs(known := collect_facts(module)):
        return Migration(source, [Note(1, "nothing of FastMCP or the official SDK is imported here")])
    wrapper = MetadataWrapper(unquote_annotations(module, known))
    facts = collect_facts(wrapper.module)
    if inside := facts.low_level_inside:
        lines = (wrapper.resolve(PositionProvider)[node].start.line for node in inside)
        return Migration(source, [Note(line, _INSIDE) for line in lines])
    rewriting = Rewriting(facts, name)
    text = wrapper.visit(rewriting).code
    return Migration(text, sorted(set(rewriting.notes)))


_INSIDE = "the server is made in a function: move it and its functions to the module, and migrate again"


def _is_theirs(facts: Facts) -> bool:
    return bool(facts.names or facts.modules)
