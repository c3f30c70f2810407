from __future__ import annotations

import ast
import re
from pathlib import Path

import defserve

# To parse all modules takes seconds, and few of them have anything like it.
LIKE_IT = re.compile(r"\braise\b[\s(\\]*[A-Z0-9_]+\b")


def list_raised_constants(text: str) -> list[str]:
    """The constants of a module that it raises: names in capitals."""
    if LIKE_IT.search(text) is None:
        return []
    raised = [node.exc for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Raise)]
    return [exc.id for exc in raised if isinstance(exc, ast.Name) and exc.id.isupper()]


def test_every_exception_is_made_when_it_is_raised() -> None:
    """One that is raised again keeps the frames of each raise, and with them the request or connection of each."""
    assert list_raised_constants("raise AWAY") == list_raised_constants("raise AWAY from None") == ["AWAY"]
    assert list_raised_constants("raise Away()") == []
    modules = Path(defserve.__file__).parent.rglob("*.py")
    found = {module.name: names for module in modules if (names := list_raised_constants(module.read_text("utf-8")))}
    assert found == {}
