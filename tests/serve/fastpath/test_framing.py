"""A head that two readers could read in two ways is refused by both parsers, and its connection is closed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server
from defserve.serve.fastpath.framing import BadFraming, check_framing
from tests.listening import listening, parsers
from tests.rows import for_each_row

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: localhost\r\n\r\n"
CHUNKS = b"0\r\n\r\n"

# Name → the version, the lines of the head, and the body.
REFUSED: dict[str, tuple[str, tuple[str, ...], bytes]] = {
    "a length and chunks": ("1.1", ("content-length: 5", "transfer-encoding: chunked"), CHUNKS),
    "chunks and a length": ("1.1", ("transfer-encoding: chunked", "content-length: 5"), CHUNKS),
    "chunks twice": ("1.1", ("transfer-encoding: chunked", "transfer-encoding: chunked"), CHUNKS),
    "another coding": ("1.1", ("transfer-encoding: gzip, chunked",), CHUNKS),
    "another coding in a line of its own": ("1.1", ("transfer-encoding: gzip", "transfer-encoding: chunked"), CHUNKS),
    "identity": ("1.1", ("transfer-encoding: identity",), b""),
    "chunks in HTTP/1.0": ("1.0", ("transfer-encoding: chunked",), CHUNKS),
    "a folded header": ("1.1", ("x-a: b\r\n content-length: 40",), b""),
    "a header folded with a tab": ("1.1", ("x-a: b\r\n\tc",), b""),
    "a folded coding": ("1.1", ("transfer-encoding:\r\n chunked",), CHUNKS),
    "HTTP/2.0": ("2.0", (), b""),
    "HTTP/0.9": ("0.9", (), b""),
    "HTTP/1.2": ("1.2", (), b""),
    "HTTP/3.0": ("3.0", (), b""),
}


@parsers
@for_each_row("name", REFUSED)
@pytest.mark.anyio
async def test_a_head_without_a_clear_end_is_refused(name: str, parser: str):
    version, lines, body = REFUSED[name]
    async with listening(Server("any", "1"), parser=parser) as where:
        reader, writer = await where.connect()
        head = "\r\n".join([f"POST /nothing HTTP/{version}", "host: localhost", *lines, "", ""]).encode()
        writer.write(head + body + HIDDEN)
        said = await reader.read()
        writer.close()
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1 ") == 1, said
    assert b"connection: close" in said.lower()


@parsers
@pytest.mark.anyio
async def test_chunks_and_lengths_are_served_in_either_version(parser: str):
    async with listening(Server("any", "1"), parser=parser) as where:
        for version, line, body in (
            ("1.1", "Transfer-Encoding: Chunked", CHUNKS),
            ("1.1", "content-length: 2", b"{}"),
            ("1.0", "content-length: 2", b"{}"),
        ):
            reader, writer = await where.connect()
            head = f"POST /nothing HTTP/{version}\r\nhost: localhost\r\nconnection: close\r\n{line}\r\n\r\n"
            writer.write(head.encode() + body)
            assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
            writer.close()


NAMES = st.sampled_from([b"transfer-encoding", b"content-length", b"host"])
VALUES = st.sampled_from([b"chunked", b"CHUNKED", b"gzip", b"identity", b"chunked, chunked", b"5", b""])


@given(st.sampled_from(["0.9", "1.0", "1.1", "1.9", "2.0"]), st.lists(st.tuples(NAMES, VALUES), max_size=4))
def test_what_passes_has_one_clear_end(version: str, headers: list[tuple[bytes, bytes]]):
    try:
        check_framing(version, headers)
    except BadFraming:
        return
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    assert version in ("1.0", "1.1")
    assert not codings or (version == "1.1" and codings == [b"chunked"] and b"content-length" not in dict(headers))
