"""Clients that call while something goes wrong, and what they were told. A call has an end, or is counted as hung."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, TypeAlias

from defserve.client import Client, ProcessLink
from defserve.client.targets import connect_url
from defserve.errors import DefserveError
from tests.attack.trial import Trial
from tests.chaos.carrying.mangling import Harm
from tests.raw import ERAS

PATIENT, IMPATIENT = 20.0, 1.0
"""How long a call may take where every byte comes, and where some do not."""
HANG_SECONDS = 30.0
START_SECONDS = 5.0
TRIES = 30

Call: TypeAlias = Callable[[str, dict[str, Any]], Awaitable[str]]
Open: TypeAlias = Callable[[int, float], AbstractAsyncContextManager[Call]]
"""Opens a conversation: its number says which era it is of, and how long a call may take."""


@dataclass
class Tally:
    """What became of the calls."""

    answered: list[str] = field(default_factory=list[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    hung: list[str] = field(default_factory=list[str])
    unexplained: list[str] = field(default_factory=list[str])

    @property
    def failed(self) -> int:
        return self.reasons.total()


@asynccontextmanager
async def ours_at(url: str, number: int, timeout: float) -> AsyncGenerator[Call]:
    """Our client at an address."""
    async with Client(await connect_url(url), version=ERAS[number % len(ERAS)], timeout=timeout) as client:
        yield client_call(client)


@asynccontextmanager
async def ours_of(command: Sequence[str], env: dict[str, str], number: int, timeout: float) -> AsyncGenerator[Call]:
    """Our client of a process, which needs a moment to start."""
    link = await ProcessLink.spawn(command[0], command[1:], env=env)
    async with Client(link, version=ERAS[number % len(ERAS)], timeout=max(timeout, START_SECONDS)) as client:
        client.timeout = timeout
        yield client_call(client)


def client_call(client: Client) -> Call:
    async def call(tool: str, arguments: dict[str, Any]) -> str:
        return await client.call(tool, **arguments)

    return call


@asynccontextmanager
async def official(target: Any, number: int, timeout: float) -> AsyncGenerator[Call]:
    """The official SDK's client, at an address or of a process."""
    from mcp.client import Client as Official

    mode: Any = ("legacy", "auto")[number % 2]
    async with Official(target, mode=mode, read_timeout_seconds=timeout) as client:

        async def call(tool: str, arguments: dict[str, Any]) -> str:
            result: Any = await client.call_tool(tool, arguments)
            return result.content[0].text

        yield call


def process(command: Sequence[str], env: dict[str, str]) -> Any:
    from mcp.client.stdio import StdioServerParameters

    return StdioServerParameters(command=command[0], args=list(command[1:]), env=env)


async def talk(
    open_one: Open, words: list[str], tally: Tally, number: int, timeout: float = PATIENT, *, is_ours: bool = True
) -> None:
    """Mark every word once. A word whose call failed is not said again: it may have been marked."""
    left, tries = list(reversed(words)), count()
    while left and next(tries) < TRIES:
        try:
            async with asyncio.timeout(HANG_SECONDS * 3), open_one(number, timeout) as call:
                await _say(call, left, tally, is_ours)
        except TimeoutError:
            tally.hung.append("a conversation")
        except Exception as error:
            # Clients of others fail in ways of their own.
            _note(error, tally, is_ours)
    if left:
        tally.wrong.append(f"no conversation could be opened in {TRIES} tries; {len(left)} words were left")


async def _say(call: Call, left: list[str], tally: Tally, is_ours: bool) -> None:
    in_a_row = 0
    while left and in_a_row < 2:
        word = left.pop()
        try:
            async with asyncio.timeout(HANG_SECONDS):
                answer = await call("mark", {"word": word})
        except TimeoutError:
            tally.hung.append(f"the call {word[:20]}")
            return
        except Exception as error:
            _note(error, tally, is_ours)
            in_a_row += 1
            continue
        in_a_row = 0
        tally.answered.append(word)
        if answer != f"marked {word}":
            tally.wrong.append(f"{word[:20]} was answered with {str(answer)[:60]!r}")


def _note(error: Exception, tally: Tally, is_ours: bool) -> None:
    said = str(error).split("\n")[0][:200]
    tally.reasons[f"{type(error).__name__}: {said}"[:160]] += 1
    if is_ours and (not isinstance(error, DefserveError) or len(said.split()) < 2):
        tally.unexplained.append(repr(error)[:300])


def words_for(random: Random, name: str, many: int) -> list[str]:
    """Short ones and long ones."""
    sizes = [random.choice((0, 10, 200, 3000, 70_000)) for _ in range(many)]
    return [f"{name}-{number}-{'x' * size}" for number, size in enumerate(sizes)]


def judge(trial: Trial, tally: Tally, marks: list[str], harm: Harm, *, is_ours: bool = True) -> None:
    """What must be so under a fault of this kind."""
    trial.expect(not tally.hung or not is_ours, f"it hangs: {tally.hung[:3]}")
    trial.expect(not tally.unexplained, f"an error does not say what happened: {tally.unexplained[:3]}")
    if harm is Harm.WRONG:
        return
    trial.expect(not tally.wrong, f"{tally.wrong[:3]}")
    marked = Counter(marks)
    lost = [word[:20] for word in tally.answered if not marked[word]]
    trial.expect(not lost, f"acknowledged and lost: {lost[:3]}")
    twice = [word[:20] for word, times in marked.items() if times > 1]
    trial.expect(not twice or not is_ours, f"ran twice: {twice[:3]}")
    if harm is Harm.LATE:
        trial.expect(not tally.failed, f"failed, though every byte came: {list(tally.reasons)[:3]}")


def note(trial: Trial, tally: Tally) -> None:
    """For the table: how many calls were answered, and the reasons that were given."""
    said = "; ".join(f"{times} × {reason}" for reason, times in tally.reasons.most_common(3))
    trial.notes.append(f"{len(tally.answered)} answered, {tally.failed} failed{': ' + said if said else ''}")


PYTHON = sys.executable
