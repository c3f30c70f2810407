"""The imports of a program: theirs go, ours come where the first of theirs was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
from libcst.helpers import get_full_name_for_node

from defserve.tooling.migrate.facts import Facts, is_foreign
from defserve.tooling.migrate.tables import NAMES, VANISHING, WITHOUT

OURS = "__defserve_import__"


class Imports:
    """Collects the names that the rewritten program needs."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._needed: set[str] = set()
        self._typing: set[str] = set()
        self._is_placed = False

    def need(self, name: str) -> str:
        self._needed.add(name)
        return name

    def need_typing(self, name: str) -> str:
        self._typing.add(name)
        return name

    def without(self, node: cst.ImportFrom) -> Iterator[tuple[str, str]]:
        """The names that an import of theirs has and that have no counterpart, each with a hint."""
        for alias in self._kept(node):
            name = alias.evaluated_name
            yield name, WITHOUT.get(name, "see the page on migrating, or keep this part where it is")

    def _kept(self, node: cst.ImportFrom) -> Sequence[cst.ImportAlias]:
        module = get_full_name_for_node(node.module) if node.module is not None else None
        if not is_foreign(module) or isinstance(node.names, cst.ImportStar) or node.relative:
            return ()
        gone = {*NAMES, *VANISHING}
        return [
            alias
            for alias in node.names
            if alias.evaluated_name not in gone
            and (alias.evaluated_alias or alias.evaluated_name) not in self._facts.modules
            and self._facts.names.get(alias.evaluated_alias or alias.evaluated_name) != "LowLevelServer"
        ]

    def statement(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseStatement]:
        """A statement without what it imports of theirs. The first one becomes the place of ours."""
        if len(original.body) != 1 or not isinstance(found := original.body[0], cst.Import | cst.ImportFrom):
            return updated
        if isinstance(found, cst.Import):
            names = [get_full_name_for_node(alias.name) for alias in found.names]
            if not any(map(is_foreign, names)):
                return updated
            kept: cst.Import | cst.ImportFrom | None = None
            others = [a for a, name in zip(found.names, names, strict=True) if not is_foreign(name)]
            if others:
                kept = found.with_changes(names=_listed(others))
        else:
            module = get_full_name_for_node(found.module) if found.module is not None else None
            if not is_foreign(module) or isinstance(found.names, cst.ImportStar):
                return updated
            left = self._kept(found)
            kept = found.with_changes(names=_listed(left)) if left else None
        rest = [updated.with_changes(body=[kept], leading_lines=())] if kept is not None else []
        if self._is_placed:
            if rest:
                return cst.FlattenSentinel(rest)
            return cst.RemoveFromParent()
        self._is_placed = True
        marker = updated.with_changes(body=[cst.Expr(cst.Name(OURS))])
        return cst.FlattenSentinel([marker, *rest])

    def replaced(self, module: cst.Module) -> cst.Module:
        """The module with our imports in their place."""
        made: list[cst.BaseStatement] = []
        at_top = False
        for statement in module.body:
            if not (isinstance(statement, cst.SimpleStatementLine) and _is_marker(statement)):
                made.append(statement)  # pyright: ignore[reportArgumentType]
                continue
            at_top = True
            lines = self._lines()
            if lines:
                first = lines[0].with_changes(
                    leading_lines=statement.leading_lines, trailing_whitespace=statement.trailing_whitespace
                )
                made += [first, *lines[1:]]
        if not at_top:  # the imports stand inside of something
            made = [*self._lines(), *made]
        return self._with_typing(module.with_changes(body=made))

    def _lines(self) -> list[cst.SimpleStatementLine]:
        if not self._needed:
            return []
        return [_statement(f"from defserve import {', '.join(sorted(self._needed))}")]

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
                wider = statement.with_changes(body=[part.with_changes(names=_listed(names))])
                return module.with_changes(body=[*module.body[:place], wider, *module.body[place + 1 :]])
        place = next((i for i, each in enumerate(module.body) if _is_import_of(each, "defserve")), 0)
        line = _statement(f"from typing import {', '.join(missing)}")
        first = module.body[place] if module.body else None
        if isinstance(first, cst.SimpleStatementLine):
            line = line.with_changes(leading_lines=first.leading_lines)
            body = [*module.body]
            body[place] = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
            return module.with_changes(body=[*body[:place], line, *body[place:]])
        return module.with_changes(body=[line, *module.body])


def _statement(text: str) -> cst.SimpleStatementLine:
    made = cst.parse_statement(text)
    assert isinstance(made, cst.SimpleStatementLine)
    return made


def _listed(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    last = len(aliases) - 1
    return [a.with_changes(comma=comma if i < last else cst.MaybeSentinel.DEFAULT) for i, a in enumerate(aliases)]


def _is_marker(statement: cst.SimpleStatementLine) -> bool:
    part = statement.body[0] if statement.body else None
    return isinstance(part, cst.Expr) and isinstance(part.value, cst.Name) and part.value.value == OURS


def _is_import_of(statement: cst.CSTNode, module: str) -> bool:
    part = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(part, cst.ImportFrom) and get_full_name_for_node(part.module or cst.Name("_")) == module
