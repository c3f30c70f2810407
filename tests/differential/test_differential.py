"""A sample of the comparison with other servers; the whole of it is `make differential`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.__main__ import compare_streams
from tests.differential.comparison import compare, explain
from tests.differential.responses import Reading, read_responses
from tests.differential.streams import KINDS, make_streams

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_each_difference_from_other_servers_has_an_explanation(tmp_path: Path):
    found, total, peers = await compare_streams(make_streams(20 * len(KINDS), seed=7), tmp_path)
    assert total == 20 * len(KINDS) and len(peers) >= 3
    assert found, "servers that never differ were not asked"
    assert [each for each in found if explain(each.kind, each.peer, each.difference) is None] == []


def test_responses_tell_which_requests_were_read():
    good = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nGET /"
    early = b"HTTP/1.1 100 Continue\r\n\r\n"
    chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nGET\r\n2\r\n /\r\n0\r\n\r\n"
    bad = b"HTTP/1.1 400 Bad Request\r\n\r\nwhy"
    assert read_responses(early + good + chunks, was_closed=False) == Reading((b"GET /", b"GET /"), refused=False)
    assert read_responses(good + bad, was_closed=False) == Reading((b"GET /",), refused=True)
    assert read_responses(b"", was_closed=True) == Reading((), refused=True)


def test_a_request_where_the_other_waits_for_more_is_never_explained():
    ours = Reading((b"POST /a 5:x", b"GET /b 0:y"), refused=False)
    assert compare(ours, Reading((b"POST /a -",), refused=False)) == "we split"
    assert compare(ours, Reading((b"POST /a 9:x",), refused=True)) == "read otherwise"
    assert compare(ours, Reading((b"POST /a 5:x",), refused=True)) == "we read more"
    assert compare(ours, Reading((*ours.requests, b"GET /c -"), refused=False)) == "we refuse"
    assert all(explain(kind.name, "nginx", "we split") is None for kind in KINDS)
