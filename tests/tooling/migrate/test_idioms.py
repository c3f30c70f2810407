"""Idioms of FastMCP and the SDK: what comes out compiles, has every comment, and starts or is reported."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from typing import Any

import anyio
import pytest

from defserve import Server, UsageError
from defserve.tooling.migrate.program import FOR_TOOLS
from tests.tooling.migrate.idioms import Idiom, migrate_idiom, read_idioms

pytestmark = pytest.mark.usefixtures("forked")

idioms = pytest.mark.parametrize("idiom", [pytest.param(each, id=each.title) for each in read_idioms()])


@idioms
def test_an_idiom_is_rewritten_as_recorded(idiom: Idiom) -> None:
    done = migrate_idiom(idiom)
    assert done.after == idiom.after
    assert done.left == idiom.left


@idioms
def test_every_comment_stays(idiom: Idiom) -> None:
    ast.parse(idiom.after, feature_version=(3, 11))
    kept = read_comments(idiom.after)
    assert [each for each in read_comments(idiom.before) if each not in kept and not FOR_TOOLS.match(each)] == []


@idioms
def test_a_rewritten_program_starts_or_its_report_names_the_line(idiom: Idiom, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str] = []

    def note_address(server: Server, on: str = "stdio:", **options: Any) -> None:
        addresses.append(on)

    monkeypatch.setattr(Server, "run", note_address)
    program: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(idiom.after, "idiom.py", "exec", dont_inherit=True), program)
    except (ImportError, AttributeError, UsageError):
        assert idiom.left
        return
    assert len(addresses) == (re.search(r"\b(mcp|main|server)\.run\(", idiom.after) is not None)
    assert all(address == "stdio:" or address.startswith("http://") for address in addresses)
    anyio.run(list_tools, next(value for value in program.values() if isinstance(value, Server)))


async def list_tools(server: Server) -> None:
    async with server.connect() as client:
        await client.tools()


def read_comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]
