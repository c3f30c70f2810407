"""`python -m tests.differential --streams 20000`: compare, print a table; a difference without an explanation fails.

How it works: each stream goes to every server over a connection of its own. When a server has been quiet for a moment,
our side is closed, and what the server still says is read. From its responses we know which requests it has read and
whether it refused the rest, or waited for more. Then each server's reading is compared with ours.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.differential.comparison import Difference, compare, explain
from tests.differential.peers import OURS, start_peers
from tests.differential.responses import Reading, read_responses
from tests.differential.streams import Stream, make_streams

QUIET_SECONDS = 0.15
PATIENT_SECONDS = 1.0
MAX_SECONDS = 8.0
AT_ONCE = 96


class Found(NamedTuple):
    """A difference of one peer in one kind of stream, how often, and one example of it."""

    kind: str
    peer: str
    difference: Difference
    times: int
    example: bytes


async def compare_streams(streams: Iterable[Stream], folder: Path) -> tuple[list[Found], int, list[str]]:
    """All differences, the number of streams, and the peers that took part."""
    counts, examples = Counter[tuple[str, str, Difference]](), dict[tuple[str, str, Difference], bytes]()
    gate, total = asyncio.Semaphore(AT_ONCE), 0
    async with start_peers(folder) as ports:

        async def send_one(stream: Stream) -> None:
            async with gate:
                readings = {name: await observe(port, stream.data) for name, port in ports.items()}
                for peer, theirs in readings.items():
                    if compare(readings[OURS], theirs) is not None:  # a busy server may only have been slow
                        readings[peer] = await observe(ports[peer], stream.data, PATIENT_SECONDS)
            for peer, theirs in readings.items():
                if (difference := compare(readings[OURS], theirs)) is not None:
                    key = stream.kind, peer, difference
                    counts[key] += 1
                    if len(examples.setdefault(key, stream.data)) > len(stream.data):
                        examples[key] = stream.data

        async with asyncio.TaskGroup() as group:
            for stream in streams:
                total += 1
                group.create_task(send_one(stream))
        peers = list(ports)
    found = [Found(*key, count, examples[key]) for key, count in counts.items()]
    return sorted(found, key=lambda each: (each.difference, each.kind, each.peer)), total, peers


async def observe(port: int, data: bytes, quiet: float = QUIET_SECONDS) -> Reading:
    """What a server says to a stream of bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received, has_refused, is_closed = b"", False, False
    try:
        async with asyncio.timeout(MAX_SECONDS):
            writer.write(data)
            await writer.drain()
            while True:
                try:
                    part = await asyncio.wait_for(reader.read(65_536), quiet)
                except TimeoutError:
                    break
                if not part:
                    has_refused = is_closed = True
                    break
                received += part
            if not is_closed:
                writer.write_eof()
                received += await reader.read(-1)
    except (OSError, TimeoutError):
        has_refused = True
    finally:
        writer.transport.abort()
    return read_responses(received, was_closed=has_refused)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--streams", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="differential-") as folder:
        found, total, peers = asyncio.run(compare_streams(make_streams(options.streams, options.seed), Path(folder)))
    print(f"{total:,} streams, to {', '.join(peers)}\n")
    unexplained = 0
    for each in found:
        reason = explain(each.kind, each.peer, each.difference)
        unexplained += reason is None
        print(f"{each.difference:18} {each.kind:26} {each.peer:20} {each.times:6}  {reason or 'NOT EXPLAINED'}")
        if reason is None:
            print(f"{'':18} for instance {each.example[:200]!r}")
    print(f"\n{sum(each.times for each in found):,} differences, {unexplained} kinds of them without an explanation")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
