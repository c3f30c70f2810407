"""The bad-input matrix: one process for the whole table, which answers a ping after each case."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rows import for_each_row
from tests.serve.processes import ServerProcess

PARSE, INVALID, UNKNOWN, PARAMS = -32700, -32600, -32601, -32602
NONE = "none"
"""The error has no id: this version has none to write when it cannot be read."""


def request(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "tools/list", **members}).encode()


def deep(levels: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":' + b"[" * levels + b"]" * levels + b"}}"


# What is sent, and the code and id of the error that answers it; None where a result does, () for silence.
MATRIX: dict[str, tuple[bytes, Any]] = {
    "malformed JSON": (b'{"jsonrpc":"2.0","id":7,', (PARSE, NONE)),
    "no JSON at all": (b"hello", (PARSE, NONE)),
    "a string": (b'"ping"', (INVALID, NONE)),
    "an empty batch": (b"[]", (INVALID, NONE)),
    "a batch": (b"[" + request(id=7) + b"]", (INVALID, NONE)),
    "jsonrpc missing": (b'{"id":7,"method":"ping"}', (INVALID, 7)),
    "jsonrpc 1.0": (request(id=7, jsonrpc="1.0"), (INVALID, 7)),
    "id null": (request(id=None), (INVALID, NONE)),
    "id bool": (request(id=True), (INVALID, NONE)),
    "id float": (request(id=1.5), (INVALID, NONE)),
    "id object": (request(id={"a": 1}), (INVALID, NONE)),
    "id list": (request(id=[7]), (INVALID, NONE)),
    "id of 2 to the 70": (request(id=2**70), None),
    "id of 600 digits": (request(id=10**600), (INVALID, NONE)),
    "id of a megabyte": (request(id="x" * 1_000_000), (INVALID, NONE)),
    "method missing": (b'{"jsonrpc":"2.0","id":7}', (INVALID, 7)),
    "method a number": (request(id=7, method=1), (INVALID, 7)),
    "method too long": (request(id=7, method="m" * 200), (INVALID, 7)),
    "method unknown": (request(id=7, method="no/such"), (UNKNOWN, 7)),
    "params a list": (request(id=7, params=[1]), (PARAMS, 7)),
    "params a string": (request(id=7, params="x"), (PARAMS, 7)),
    "tool unknown": (request(id=7, method="tools/call", params={"name": "no_such"}), (PARAMS, 7)),
    "arguments a list": (request(id=7, method="tools/call", params={"name": "echo", "arguments": []}), (PARAMS, 7)),
    "100 levels": (deep(100), (INVALID, 7)),
    "100,000 levels": (deep(100_000), (PARSE, NONE)),
    "a line of 20 MB": (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"' + b"x" * 20_000_000 + b'"}}',
                        (INVALID, NONE)),
    "too many members": (request(id=7, params={str(n): 0 for n in range(20_000)}), (INVALID, 7)),
    "invalid UTF-8": (b'{"jsonrpc":"2.0","id":7,"method":"\xff\xfe"}', (PARSE, NONE)),
    "overlong UTF-8": (b'{"jsonrpc":"2.0","id":7,"method":"\xc0\xaf"}', (PARSE, NONE)),
    "a lone surrogate, escaped": (b'{"jsonrpc":"2.0","id":7,"method":"\\ud800"}', (PARSE, NONE)),
    "a lone surrogate, encoded": (b'{"jsonrpc":"2.0","id":7,"method":"\xed\xa0\x80"}', (PARSE, NONE)),
    "a BOM on a later line": (b"\xef\xbb\xbf" + request(id=7), (PARSE, NONE)),
    "a CR within": (b'{"jsonrpc":"2.0",\r"id":7,"method":"ping"}', None),
    "a CR at the end": (request(id=7) + b"\r", None),
    "U+2028 within": ('{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"\u2028"}}'.encode(), None),
    "NUL within": (b'{"jsonrpc":"2.0","id":7,"method":"ping\x00"}', (PARSE, NONE)),
    "NUL only": (b"\x00", (PARSE, NONE)),
    "blank lines": (b"\n \t\r\n\n", ()),
    "a notification nobody knows": (b'{"jsonrpc":"2.0","method":"no/such"}', ()),
    "an answer to nothing": (b'{"jsonrpc":"2.0","id":7,"result":{}}', ()),
    "a broken answer": (b'{"jsonrpc":"2.0","id":7,"result":{},"error":1}', ()),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    source = """
    server = Server("matrix")

    @server.tool
    async def echo(text: str) -> str:
        return text
    """
    folder: Path = tmp_path_factory.mktemp("matrix")
    with ServerProcess(folder, source) as process:
        # A BOM at the very start of the stream is no mistake.
        process.write(b"\xef\xbb\xbf")
        yield process.open()
        process.end()
        assert process.exit_code() == 0 and process.rest(2) == []


@pytest.mark.req("MCP-2.1", "MCP-2.2", "MCP-4.4p")
@for_each_row("case", MATRIX)
def test_bad_input_is_answered_by_the_rules_and_a_ping_after_it(case: str, server: ServerProcess):
    line, expected = MATRIX[case]
    server.write(line + b"\n")
    server.ask("after", "ping")
    answers = [server.read() for _ in range(1 if expected == () else 2)]
    answers.remove({"jsonrpc": "2.0", "id": "after", "result": {}})
    if expected is None:
        assert "result" in answers[0]
    elif expected:
        code, id = expected
        assert answers[0]["error"]["code"] == code and answers[0].get("id", NONE) == id
        assert answers[0]["jsonrpc"] == "2.0" and len(answers[0]["error"]["message"]) < 500
