"""The transport alone, on pipes of the test's own. What it does to a process is tested with `runner/serve.py`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from defserve.serve.stdio import HIGH_WATER, StdioTransport


class Ends:
    """A transport between two pipes; `say` and `hear` are the peer's ends."""

    def __init__(self, limit: int = 1000) -> None:
        self.stdio = StdioTransport(limit)
        self.stdio._input, self.say = os.pipe()
        self.hear, self.stdio._output = os.pipe()
        self.received: list[bytes | None] = []
        self.over, self.more = asyncio.Event(), asyncio.Event()

    def start(self) -> None:
        self.stdio.start(asyncio.get_running_loop(), self._take, self.over.set)

    def _take(self, lines: list[bytes | None]) -> None:
        self.received += lines
        self.more.set()

    async def until(self, count: int) -> None:
        """Until so many lines were received."""
        while len(self.received) < count:
            self.more.clear()
            await self.more.wait()

    async def heard(self, size: int) -> bytes:
        os.set_blocking(self.hear, False)
        data = b""
        async with asyncio.timeout(20):
            while len(data) < size:
                try:
                    data += os.read(self.hear, 1 << 20)
                except BlockingIOError:
                    await asyncio.sleep(0)
        return data

    def close(self) -> None:
        for descriptor in (self.stdio._input, self.stdio._output, self.say, self.hear):
            try:
                os.close(descriptor)
            except OSError:
                pass


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def run(ends: Ends, work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            async with asyncio.timeout(10):
                await work()
        finally:
            ends.stdio.close()

    asyncio.run(main())


def test_lines_come_in_and_messages_go_out(ends: Ends):
    async def work() -> None:
        ends.start()
        os.write(ends.say, b"one\ntwo\nthr")
        os.write(ends.say, b"ee\n")
        await ends.until(3)
        ends.stdio.send(b"a")
        ends.stdio.send(b"b")
        ends.stdio.flush()
        assert await ends.heard(4) == b"a\nb\n"
        os.close(ends.say)
        await ends.over.wait()

    run(ends, work)
    assert ends.received == [b"one", b"two", b"three"]


def test_before_there_is_a_loop_lines_are_waited_for(ends: Ends):
    assert ends.stdio.read_now(0) == []
    os.write(ends.say, b"one\ntw")
    assert ends.stdio.read_now(None) == [b"one"]
    os.set_blocking(ends.stdio._input, False)
    assert ends.stdio.read_now(0.01) == []
    os.close(ends.say)
    assert ends.stdio.read_now(1) == [b"tw"]
    assert ends.stdio.read_now(1) is None


def test_half_a_line_read_before_the_loop_is_finished_after(ends: Ends):
    async def work() -> None:
        os.write(ends.say, b"one\ntw")
        assert ends.stdio.read_now(None) == [b"one"]
        ends.start()
        os.write(ends.say, b"o\n")
        await ends.until(1)

    run(ends, work)
    assert ends.received == [b"two"]


def test_what_the_pipe_does_not_take_follows_in_order(ends: Ends):
    messages = [bytes([65 + n % 26]) * (1 + 997 * n % 200_000) for n in range(100)]

    async def work() -> None:
        ends.start()
        for message in messages:
            ends.stdio.send(message)
            ends.stdio.flush()
        assert ends.stdio.queued > 0
        heard = await ends.heard(sum(map(len, messages)) + len(messages))
        assert heard.split(b"\n")[:-1] == messages
        assert ends.stdio.queued == 0

    run(ends, work)


def test_reading_stops_while_the_peer_does_not_read_and_goes_on_when_it_does(ends: Ends):
    async def work() -> None:
        ends.start()
        ends.stdio.send(b"x" * (HIGH_WATER + 100_000))
        ends.stdio.flush()
        os.write(ends.say, b"one\n")
        await ends.until(1)
        os.write(ends.say, b"two\n")
        for _ in range(20):
            await asyncio.sleep(0)
        assert ends.received == [b"one"]
        await ends.heard(HIGH_WATER + 100_000)
        await ends.until(2)

    run(ends, work)
    assert ends.received == [b"one", b"two"]


def test_a_reader_that_is_gone_ends_it(ends: Ends):
    async def work() -> None:
        ends.start()
        os.close(ends.hear)
        ends.stdio.send(b"a")
        ends.stdio.flush()
        await ends.over.wait()
        ends.stdio.send(b"b")
        assert ends.stdio.closed and ends.stdio.queued == 0

    run(ends, work)


def test_a_last_line_that_cannot_be_taken_does_not_hide_the_end(ends: Ends):
    def fail_at_rest(lines: list[bytes | None]) -> None:
        if lines:
            raise MemoryError

    async def work() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        ends.stdio.start(asyncio.get_running_loop(), fail_at_rest, ends.over.set)
        os.write(ends.say, b"half")
        os.close(ends.say)
        await ends.over.wait()

    run(ends, work)


def test_it_knows_that_the_writer_has_left_while_lines_are_still_unread(ends: Ends):
    os.write(ends.say, b"one\n")
    assert not ends.stdio.abandoned
    os.close(ends.say)
    assert ends.stdio.abandoned


def test_a_reader_that_went_before_the_loop_ends_it_at_the_start(ends: Ends):
    async def work() -> None:
        os.close(ends.hear)
        ends.stdio.send(b"a")
        ends.stdio.flush()
        ends.start()
        assert ends.over.is_set()

    run(ends, work)


def test_it_waits_for_a_peer_that_still_reads_and_not_for_one_that_does_not(ends: Ends):
    async def work() -> None:
        ends.start()
        ends.stdio.send(b"x" * 1_000_000)
        ends.stdio.flush()
        reader = asyncio.create_task(ends.heard(1_000_001))
        await ends.stdio.wait_until_written(5)
        assert ends.stdio.queued == 0
        await reader
        ends.stdio.send(b"x" * 1_000_000)
        ends.stdio.flush()
        await ends.stdio.wait_until_written(0.01)
        assert ends.stdio.queued > 0

    run(ends, work)


def test_a_sender_is_told_when_its_message_has_been_taken(ends: Ends):
    async def work() -> None:
        ends.start()
        taken: list[str] = []
        ends.stdio.send(b"small", lambda: taken.append("small"))
        ends.stdio.flush()
        assert taken == ["small"]
        large = b"x" * (1 << 20)
        ends.stdio.send(large, lambda: taken.append("large"))
        ends.stdio.send(b"plain")
        ends.stdio.send(b"last", lambda: taken.append("last"))
        ends.stdio.flush()
        assert taken == ["small"]  # the pipe is full
        await ends.heard(len(b"small\n" + large + b"\nplain\nlast\n"))
        assert taken == ["small", "large", "last"]

    run(ends, work)
