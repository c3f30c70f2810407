"""What errors say: sentences, so that whoever reads one knows what is wrong before reading the fix."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "framework" / "defserve"

# A name with a value, or a bare noun with one: what about it?
NO_PREDICATE = re.compile(r"\w=\{\}\)?$|^(?:[a-z]+ ){1,2}\{\}$|^unknown ")
VERB = re.compile(r"\b(?:is|are|has|have|no|not|can|cannot|needs|names|reads|gave|returned|serve|more|refused)\b")


def texts() -> Iterator[tuple[str, str]]:
    """Where each UsageError is raised, and its text; `{}` is what is filled in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "UsageError(" in source else ():
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "UsageError" and node.args):
                continue
            if isinstance(text := node.args[0], ast.JoinedStr):
                said = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in text.values)
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", said


@pytest.mark.slow
def test_every_usage_error_has_a_predicate():
    found = dict(texts())
    assert len(found) > 300
    assert [
        f"{where}: {text}" for where, text in found.items() if NO_PREDICATE.search(text) and not VERB.search(text)
    ] == []
