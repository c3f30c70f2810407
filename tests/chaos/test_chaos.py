"""The chaos suite itself: what its roads do to bytes, and that it tells failures from successes."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attack.arena import Arena
from tests.attack.speaking.sockets import Place
from tests.attack.trial import Trial
from tests.chaos.carrying.mangling import ROADS, End, Harm, Road
from tests.chaos.carrying.proxy import proxied
from tests.chaos.families import faults
from tests.chaos.load import Tally, judge
from tests.rows import for_each_row


def carried(road: Road, seed: int, reads: list[bytes]) -> tuple[bytes, bool]:
    """What comes of these reads, and whether the road has ended."""
    mangle, found = road.make(Random(seed)), b""
    for data in reads:
        for step in mangle(data):
            if isinstance(step, bytes):
                found += step
            elif isinstance(step, End) or step > 1:
                return found, True
    return found, False


@given(st.sampled_from(ROADS), st.integers(0, 1000), st.lists(st.binary(min_size=1, max_size=3000), max_size=20))
def test_a_road_does_what_its_harm_says(road: Road, seed: int, reads: list[bytes]):
    whole = b"".join(reads)
    found, has_ended = carried(road, seed, reads)
    if road.harm is Harm.LATE:
        assert (found, has_ended) == (whole, False)
    elif road.harm is Harm.LOST:
        assert whole.startswith(found) and (has_ended or found == whole)
    else:
        assert not has_ended


@for_each_row("road", [road for road in ROADS if road.harm is not Harm.LATE])
def test_every_road_harms_in_the_end(road: Road):
    reads = [bytes(range(256)) * 40] * 20
    assert carried(road, 1, reads)[0] != b"".join(reads)


def test_every_row_has_a_name_of_its_own_and_says_what_is_expected():
    rows = faults()
    assert max(Counter((row.family, row.name) for row in rows).values()) == 1
    assert all(row.expected for row in rows) and len(rows) > 150


@for_each_row(
    ("tally", "marks", "harm", "wrong"),
    [
        (Tally(answered=["a"]), ["a"], Harm.LATE, None),
        (Tally(answered=["a"]), [], Harm.LOST, "acknowledged and lost"),
        (Tally(answered=["a"]), ["a", "a"], Harm.LOST, "ran twice"),
        (Tally(hung=["the call a"]), [], Harm.WRONG, "it hangs"),
        (Tally(wrong=["a was answered with 'b'"]), [], Harm.LOST, "answered with"),
        (Tally(wrong=["a was answered with 'b'"]), [], Harm.WRONG, None),
        (Tally(reasons=Counter({"PeerGone: it left": 1})), [], Harm.LATE, "failed, though every byte came"),
        (Tally(reasons=Counter({"PeerGone: it left": 1})), ["a"], Harm.LOST, None),
        (Tally(unexplained=["KeyError()"]), [], Harm.WRONG, "does not say what happened"),
    ],
)
def test_what_must_not_be_is_found(tally: Tally, marks: list[str], harm: Harm, wrong: str | None):
    trial = Trial(Arena.__new__(Arena), Random(1))
    judge(trial, tally, marks, harm)
    assert [text for text in trial.failures if wrong is None or wrong not in text] == []
    assert bool(trial.failures) == (wrong is not None)


@pytest.mark.anyio
@for_each_row(("name", "got"), [("in crumbs", b"hello"), ("cut", b"")])
async def test_the_proxy_passes_on_what_the_road_leaves(name: str, got: bytes):
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        finally:
            writer.close()
            echoed.set()

    echoed = asyncio.Event()
    road = next(road for road in ROADS if road.name == name)
    first = Road(name, road.harm, road.make if got else lambda random: lambda data: iter([End.CLOSE]))
    async with asyncio.timeout(30), await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        place = Place(*server.sockets[0].getsockname())
        async with proxied(place, Random(1), down=first) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read() == got
            assert proxy.struck
            writer.close()
            await echoed.wait()
