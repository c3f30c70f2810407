"""A bad road between client and server: every kind of harm, each way, over every transport, for two clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from tests.attack.arena import Served
from tests.attack.trial import Trial
from tests.chaos.carrying.mangling import ROADS, Harm, Road
from tests.chaos.carrying.proxy import proxied
from tests.chaos.fault import SERVERS, Faults, expect_unharmed, kind, marks_of
from tests.chaos.load import (
    IMPATIENT,
    PATIENT,
    PYTHON,
    START_SECONDS,
    Open,
    Tally,
    judge,
    note,
    official,
    ours_at,
    ours_of,
    process,
    talk,
    words_for,
)

TALKERS, WORDS = 3, 12
# A process takes a moment to start, and the official client to give up.
FEW_TALKERS, FEW_WORDS = 2, 6


class Way(NamedTuple):
    """A transport: where the server listens, and the address of the proxy in front of it."""

    name: str
    on: str
    url: str


WAYS = (
    Way("HTTP", "http://127.0.0.1:0/mcp", "http://127.0.0.1:{port}/mcp"),
    Way("unix", "unix:{folder}/socket", "http://127.0.0.1:{port}/mcp"),
    Way("WebSocket", "ws://127.0.0.1:0/mcp", "ws://127.0.0.1:{port}/mcp"),
)
CLIENTS: dict[str, Callable[[str], Open]] = {
    "our client": lambda url: partial(ours_at, url),
    "the official client": lambda url: partial(official, url),
}


def over_a_socket(trial: Trial, way: Way, client: str, up: Road | None, down: Road | None) -> None:
    served = trial.arena.serve(kind(on=way.on))
    files, is_ours = served.open_files, client == "our client"
    harm = _harm(up, down)
    tally = asyncio.run(_talk_through(trial, served, way, CLIENTS[client], up, down, is_ours))
    judge(trial, tally, marks_of(served), harm, is_ours=is_ours)
    note(trial, tally)
    expect_unharmed(trial, served, files)
    if served.is_alive:
        _still_answers(trial, served, way)


async def _talk_through(
    trial: Trial,
    served: Served,
    way: Way,
    client: Callable[[str], Open],
    up: Road | None,
    down: Road | None,
    ours: bool,
) -> Tally:
    tally = Tally()
    async with proxied(served.place, trial.random, up=up, down=down) as proxy:
        open_one = client(way.url.format(port=proxy.port))
        name = f"{trial.random.randrange(1 << 40):x}"
        talkers, many = (TALKERS, WORDS) if ours else (FEW_TALKERS, FEW_WORDS)
        said = [words_for(trial.random, f"{name}-{n}", many) for n in range(talkers)]
        wait = PATIENT if _harm(up, down) is Harm.LATE else IMPATIENT
        await asyncio.gather(*(talk(open_one, words, tally, n, wait, is_ours=ours) for n, words in enumerate(said)))
        trial.expect(proxy.struck, "nothing was harmed: the row shows nothing")
    return tally


def _harm(up: Road | None, down: Road | None) -> Harm:
    road = up or down
    return road.harm if road else Harm.LATE


def _still_answers(trial: Trial, served: Served, way: Way) -> None:
    """Somebody else, over a good road."""

    async def ask() -> Tally:
        tally = Tally()
        async with proxied(served.place, Random(1)) as proxy:
            url = way.url.format(port=proxy.port)
            words = [f"{trial.random.randrange(1 << 60):x}" for _ in range(2)]
            for n, word in enumerate(words):
                await talk(partial(ours_at, url), [word], tally, n)
        return tally

    tally = asyncio.run(ask())
    trial.expect(len(tally.answered) == 2 and not tally.failed, f"the server no longer answers: {tally}")


def over_pipes(trial: Trial, client: str, up: Road | None, down: Road | None) -> None:
    folder = trial.arena.folder / f"pipes{trial.random.randrange(1 << 40)}"
    folder.mkdir()
    marks, log = folder / "marks", folder / "log"
    env = {**trial.arena.environment, "ATTACK_MARKS": str(marks)}
    is_ours, tally, random, harm = client == "our client", Tally(), trial.random, _harm(up, down)

    def open_one(number: int, timeout: float):
        names = [road.name if road else "-" for road in (up, down)]
        carried = ["-m", "tests.chaos.carrying.pipe", str(random.random()), *names, str(log)]
        command = [PYTHON, *carried, PYTHON, f"{SERVERS}/marking.py", "--log-level", "warning"]
        return (
            ours_of(command, env, number, timeout)
            if is_ours
            else official(process(command, env), number, max(timeout, START_SECONDS))
        )

    async def talk_all() -> None:
        said = [words_for(random, f"word-{n}", FEW_WORDS) for n in range(FEW_TALKERS)]
        wait = PATIENT if harm is Harm.LATE else IMPATIENT
        await asyncio.gather(*(talk(open_one, words, tally, n, wait, is_ours=is_ours) for n, words in enumerate(said)))

    asyncio.run(talk_all())
    marked = marks.read_text().split("\n")[:-1] if marks.exists() else []
    judge(trial, tally, marked, harm, is_ours=is_ours)
    note(trial, tally)
    logged = log.read_text()
    trial.expect("Traceback" not in logged, f"the server logged a traceback: {logged[-400:]}")


def _rows(name: str, client: str, run: Callable[..., None]) -> Faults:
    faults = Faults(f"{name}, {client}")
    for road in ROADS:
        for direction in ("requests", "answers"):
            up, down = (road, None) if direction == "requests" else (None, road)
            wanted = road.harm.value if client == "our client" or road.harm is Harm.LATE else _SERVER_GOES_ON
            faults.add(f"{direction} {road.name}", wanted, partial(run, client=client, up=up, down=down))
    return faults


_SERVER_GOES_ON = "what is acknowledged was done, and the server goes on"
FAMILIES = (
    _rows("HTTP", "our client", partial(over_a_socket, way=WAYS[0])),
    _rows("HTTP", "the official client", partial(over_a_socket, way=WAYS[0])),
    _rows("unix", "our client", partial(over_a_socket, way=WAYS[1])),
    _rows("WebSocket", "our client", partial(over_a_socket, way=WAYS[2])),
    _rows("pipes", "our client", over_pipes),
    _rows("pipes", "the official client", over_pipes),
)
