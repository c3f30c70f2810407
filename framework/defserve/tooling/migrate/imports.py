"""The imports of a program: theirs go if nothing uses them any more, ours come where the first of theirs was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import libcst as cst
from libcst.helpers import get_full_name_for_node

from defserve.tooling.migrate.facts import Facts, is_foreign
from defserve.tooling.migrate.tables import NAMES, VANISHING, WITHOUT
from defserve.tooling.migrate.uses import Use, uses_of

_Found: TypeAlias = cst.Import | cst.ImportFrom
_Statement: TypeAlias = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Part = cst.BaseSmallStatement


class Imports:
    """Collects the names that the rewritten program needs. `problems`: a node, and what is left to do about it."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._typing: set[str] = set()
        self.needed: set[str] = set()
        self.problems: list[tuple[cst.CSTNode, str]] = []

    def need(self, name: str) -> str:
        self.needed.add(name)
        return name

    def need_typing(self, name: str) -> str:
        self._typing.add(name)
        return name

    def replaced(self, before: cst.Module, after: cst.Module) -> cst.Module:
        """The rewritten module without the imports it no longer needs, and with ours."""
        strip = _Strip(self._facts, uses_of(before), uses_of(after), self.problems)
        made: list[_Statement] = []
        place: int | None = None
        for statement in after.body:
            strip.has_found = False
            kept = _stripped(statement, strip)
            if place is None and strip.has_found:
                ours, kept = self._ours(statement, kept)
                is_def = isinstance(statement, cst.FunctionDef | cst.ClassDef)
                place = _end_of_head(made) if is_def else len(made)
                made[place:place] = ours
            made += kept
        if place is None:  # all that imported theirs is gone
            place = _end_of_head(made)
            made[place:place] = self._lines()
        return self._with_typing(after.with_changes(body=made))

    def _ours(self, was: cst.CSTNode, kept: list[_Statement]) -> tuple[list[cst.SimpleStatementLine], list[_Statement]]:
        """Our import for the place of a statement of theirs, and what is left of that. The comments go to ours."""
        lines = self._lines()
        if not lines or isinstance(was, cst.FunctionDef | cst.ClassDef):
            return lines, kept
        if isinstance(was, cst.SimpleStatementLine):
            own = lines[0].with_changes(leading_lines=was.leading_lines, trailing_whitespace=was.trailing_whitespace)
            blank = cst.TrailingWhitespace()
            return [own], [each.with_changes(leading_lines=(), trailing_whitespace=blank) for each in kept]
        if not kept and isinstance(was, cst.Try | cst.If):
            return [lines[0].with_changes(leading_lines=was.leading_lines)], kept
        return lines, kept

    def _lines(self) -> list[cst.SimpleStatementLine]:
        if not self.needed:
            return []
        return [_statement(f"from defserve import {', '.join(sorted(self.needed))}")]

    def _with_typing(self, module: cst.Module) -> cst.Module:
        known: set[str] = set()
        for statement in module.body:
            for part in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
                if isinstance(part, cst.ImportFrom) and not isinstance(part.names, cst.ImportStar):
                    known |= {alias.evaluated_alias or alias.evaluated_name for alias in part.names}
        missing = sorted(self._typing - known)
        if not missing:
            return module
        for place, statement in enumerate(module.body):
            if _is_import_of(statement, "typing") and isinstance(statement, cst.SimpleStatementLine):
                part = cst.ensure_type(statement.body[0], cst.ImportFrom)
                if isinstance(part.names, cst.ImportStar) or part.lpar is not None:
                    break
                names = [*part.names, *(cst.ImportAlias(cst.Name(name)) for name in missing)]
                wider = statement.with_changes(body=[part.with_changes(names=_listed(names)), *statement.body[1:]])
                return module.with_changes(body=[*module.body[:place], wider, *module.body[place + 1 :]])
        line = _statement(f"from typing import {', '.join(missing)}")
        body = [*module.body]
        place = next((i for i, each in enumerate(body) if _is_import_of(each, "defserve")), None)
        if place is None:
            place = _end_of_head(body)
        else:
            first = cst.ensure_type(body[place], cst.SimpleStatementLine)
            line = line.with_changes(leading_lines=first.leading_lines)
            body[place] = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return module.with_changes(body=[*body[:place], line, *body[place:]])


class _Strip(cst.CSTTransformer):
    """Takes imports of theirs away. What is still used stays, and is a problem."""

    def __init__(
        self, facts: Facts, before: list[Use], after: list[Use], problems: list[tuple[cst.CSTNode, str]]
    ) -> None:
        super().__init__()
        self._facts, self._after, self._problems = facts, after, problems
        self._were_used = {use.name for use in before}
        # A program may call its server `mcp`, as the package is called.
        self._are_used = {use.name for use in after} - facts.servers - facts.low_level
        self.has_found = False

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return False

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.RemovalSentinel:
        if (body := self._parts(updated_node.body)) is None:
            return updated_node
        return updated_node.with_changes(body=body) if body else cst.RemoveFromParent()

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        body = self._parts(original_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_Try(
        self, original_node: cst.Try, updated_node: cst.Try
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement] | cst.RemovalSentinel:
        """Without the import there is nothing to try: what follows a success is left."""
        if updated_node.body.body:
            return updated_node
        after = [block.body for block in (updated_node.orelse, updated_node.finalbody) if block is not None]
        if any(not isinstance(block, cst.IndentedBlock) for block in after):
            return updated_node
        left = [each for block in after for each in block.body if isinstance(each, cst.BaseStatement)]
        return cst.FlattenSentinel(left) if left else cst.RemoveFromParent()

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.BaseStatement | cst.RemovalSentinel:
        is_for_types = (get_full_name_for_node(updated_node.test) or "").rpartition(".")[2] == "TYPE_CHECKING"
        if is_for_types and not updated_node.body.body and updated_node.orelse is None:
            return cst.RemoveFromParent()
        return updated_node

    def _parts(self, parts: Sequence[_Part]) -> list[_Part] | None:
        """The statements of a line without imports of theirs; None if it has none of them."""
        if not any(isinstance(part, cst.Import | cst.ImportFrom) and _is_theirs(part) for part in parts):
            return None
        self.has_found = True
        kept = [self._left(part) if isinstance(part, cst.Import | cst.ImportFrom) else part for part in parts]
        found = [part for part in kept if part is not None]
        return [*found[:-1], *(part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for part in found[-1:])]

    def _left(self, found: _Found) -> _Found | None:
        if isinstance(found.names, cst.ImportStar):
            if _is_theirs(found):
                self._problems.append((found, "what * brings is not known: import each name, and migrate again"))
            return found
        if not _is_theirs(found):
            return found
        kept = [alias for alias in found.names if self._stays(alias, found)]
        return found.with_changes(names=_listed(kept)) if kept else None

    def _stays(self, alias: cst.ImportAlias, found: _Found) -> bool:
        name = get_full_name_for_node(alias.name) or ""
        local = alias.evaluated_alias or (name.partition(".")[0] if isinstance(found, cst.Import) else name)
        if isinstance(found, cst.Import) and not is_foreign(name):
            return True
        if isinstance(found, cst.Import) or local in self._facts.modules:
            if local in self._are_used:
                self._problems += [(use.node, no_counterpart(use.full)) for use in self._after if use.name == local]
            return local in self._are_used
        if self._facts.names.get(local) in NAMES:
            return False
        is_gone = local in self._were_used or name in VANISHING
        if is_gone and local not in self._are_used:
            return False
        self._problems.append((found, no_counterpart(name)))
        return True


def no_counterpart(name: str) -> str:
    """What is said about a name of theirs that stays. `name` may be dotted."""
    hint = WITHOUT.get(name.rpartition(".")[2], "see the page on migrating, or keep this part where it is")
    return f"{name} has no counterpart: {hint}"


def _is_theirs(found: _Found) -> bool:
    if isinstance(found, cst.Import):
        return any(is_foreign(get_full_name_for_node(alias.name)) for alias in found.names)
    return found.module is not None and not found.relative and is_foreign(get_full_name_for_node(found.module))


def _stripped(statement: _Statement, strip: _Strip) -> list[_Statement]:
    made = statement.visit(strip)
    if isinstance(made, cst.RemovalSentinel):
        return []
    return list(made) if isinstance(made, cst.FlattenSentinel) else [made]  # pyright: ignore


def _end_of_head(body: Sequence[_Statement]) -> int:
    """The place behind the docstring and the first imports."""
    for place, statement in enumerate(body):
        part = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
        is_docstring = place == 0 and isinstance(part, cst.Expr) and isinstance(part.value, cst.SimpleString)
        if not is_docstring and not isinstance(part, cst.Import | cst.ImportFrom):
            return place
    return len(body)


def _statement(text: str) -> cst.SimpleStatementLine:
    made = cst.parse_statement(text)
    assert isinstance(made, cst.SimpleStatementLine)
    return made


def _listed(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = len(aliases) - 1
    return [a.with_changes(comma=comma if i < last else cst.MaybeSentinel.DEFAULT) for i, a in enumerate(aliases)]


def _is_import_of(statement: cst.CSTNode, module: str) -> bool:
    part = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(part, cst.ImportFrom) and get_full_name_for_node(part.module or cst.Name("_")) == module
