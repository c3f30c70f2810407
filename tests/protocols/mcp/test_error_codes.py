"""The codes of the errors that we send. -32020 to -32099 are the specification's, and below -32000 none is ours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import defserve
from defserve.errors import PeerError, ProtocolError
from defserve.protocols.mcp.errors import SPECIFIED_CODES, choose_relayed_error_code, is_server_full_error
from defserve.protocols.mcpl import vocabulary as mcpl
from tests.rows import for_each_row

ROOT = Path(defserve.__file__).parent
RESERVED = range(-32099, -31999)

# Which file may write which code of the range, and whose code it is.
ALLOWED: dict[str, set[int]] = {
    # MCP 2026-07-28.
    "serve/http/streamable.py": {-32020, -32021, -32022},
    # The ends of the range, and what servers of ours said before: they are read, never sent.
    "protocols/mcp/errors.py": {-32020, -32021, -32022, -32002, -32029, -32099, -32019},
    "protocols/mcp/lifecycle.py": {-32022},
    "client/links/http.py": {-32020},
    "client/eras.py": {-32020, -32021, -32022},
    "client/tasks.py": {-32021},
    # MCP 2025-11-25 and before: a resource that does not exist; what other servers say of a lost session.
    "cli/commands/read.py": {-32002},
    "client/links/event_streams.py": {-32000, -32001},
    # MCP Events, a draft behind a switch: the numbers of its two dialects.
    "protocols/mcp/events/draft.py": {*range(-32027, -32022), *range(-32015, -32010)},
    # MCPL names these, and only its peers get them.
    "protocols/mcpl/vocabulary.py": {-32001, -32002, -32003, -32005, -32006, -32017, -32023, -32024},
    "inspector/page/panels/state.js": {-32005},
    # Opt-in, and only for sessions that began with a handshake: before 2026-07-28 the range was open.
    "protocols/mcp/numbered_errors.py": {-32001, -32002, -32003, -32004, -32005},
}


def codes_in(path: Path) -> Iterator[int]:
    text = path.read_text()
    if re.search(r"32_?0\d\d", text) is None:
        return  # parsing all files takes seconds
    if path.suffix != ".py":
        yield from (int(found) for found in re.findall(r"-32\d{3}\b", text))
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                yield -number
            case _:
                pass


def test_no_file_writes_a_reserved_code_that_is_not_in_the_table() -> None:
    found: dict[str, set[int]] = {}
    for path in (*ROOT.rglob("*.py"), *ROOT.rglob("*.js")):
        if codes := {code for code in codes_in(path) if code in RESERVED}:
            found[path.relative_to(ROOT).as_posix()] = codes
    assert found == ALLOWED


def test_the_codes_of_mcpl_are_in_its_errors_alone() -> None:
    own = {getattr(value, "code", 0) for value in vars(mcpl).values() if isinstance(value, type)}
    assert ALLOWED["protocols/mcpl/vocabulary.py"] <= own


@given(st.integers(-33000, -31000))
def test_what_a_backend_sends_reaches_a_client_only_with_a_code_that_may_be_sent(code: int) -> None:
    sent = choose_relayed_error_code(code)
    assert sent == code or sent == -32603
    assert sent in SPECIFIED_CODES or sent not in range(-32099, -32019)


@pytest.mark.anyio
@for_each_row(("version", "keeps"), [("2026-07-28", False), ("2025-11-25", True)])
async def test_an_authors_own_code_is_sent_only_where_its_range_is_open(version: str, keeps: bool) -> None:
    server = defserve.Server("codes", "1")

    @server.resource("code://{code}")
    def refuse(code: int) -> str:
        """Refuse with a code."""
        raise ProtocolError("no", code=-code)

    async with server.connect(version) as client:
        for code in (*range(-32099, -32018), -32602, -31000):
            with pytest.raises(PeerError) as raised:
                await client.read(f"code://{-code}")
            is_free = keeps or code in SPECIFIED_CODES or code not in range(-32099, -32019)
            assert raised.value.code == (code if is_free else -32603)


@for_each_row(
    "code, data, is_busy",
    [
        (-32603, {"error_type": "limit_exceeded", "retry_after_ms": 1000}, True),
        (-32603, {"error_type": "limit_exceeded", "limit": "in_flight", "retry_after_ms": 1}, True),
        (-32029, {"limit": "in_flight"}, True),
        (-32029, None, True),
        (-32603, {"error_type": "limit_exceeded"}, False),
        (-32603, {"error_type": "internal_error", "retry_after_ms": 5}, False),
        (-32603, {"error_type": "limit_exceeded", "retry_after_ms": "soon"}, False),
        (-32603, None, False),
        (-32603, "busy", False),
        (-32602, {"error_type": "limit_exceeded", "retry_after_ms": 1000}, False),
    ],
    ids=range(10),
)
def test_both_ways_in_which_servers_of_ours_say_that_there_is_no_room(code: int, data: object, is_busy: bool) -> None:
    assert is_server_full_error(code, data) is is_busy
