"""A worker in this process, and a supervisor in a thread that is played by hand."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest

from defserve import Server
from defserve.errors import UsageError
from defserve.serve.address import Address
from defserve.server.workers import worker as worker_module
from defserve.server.workers.running import address_of_group, serve_as_worker, supervise_unless_worker, worker_count
from defserve.server.workers.worker import (
    WORKER_VARIABLE,
    WorkerGroupSecrets,
    WorkerLink,
    WorkerLinkLost,
    WorkerMembership,
    join_worker_group,
    read_worker_membership,
)
from tests.rows import for_each_row

ON = "http://127.0.0.1:0/mcp"


class Played:
    """A supervisor whose lines are written by hand. What the worker says comes one line at a time."""

    def __init__(self, control: socket.socket, port: int) -> None:
        self._control, self.port = control, port
        self._lines = control.makefile("rb")
        control.settimeout(30)

    def hear(self, what: str) -> dict[str, Any]:
        """The next message that asks this."""
        return next(found for found in self.messages() if found.get("what") == what)

    def ask(self, what: str, about: Any = None) -> Any:
        """The worker's answer."""
        self.send({"ask": 7, "what": what, "about": about})
        return next(found["value"] for found in self.messages() if found.get("answer") == 7)

    def answer(self, asked: dict[str, Any], value: Any) -> None:
        self.send({"answer": asked["ask"], "value": value})

    def send(self, message: dict[str, Any]) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def hang_up(self) -> None:
        self._lines.close()
        self._control.close()

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers={"host": "localhost"})
        response = connection.getresponse()
        found = response.status, response.read().decode()
        connection.close()
        return found

    def messages(self) -> Any:
        while line := self._lines.readline():
            yield json.loads(line)


def work(server: Server, play: Callable[[Played], None]) -> int:
    """Serve as worker 3 of 4 while `play` runs in a thread; the exit code."""
    ours, theirs = socket.socketpair()
    with socket.socket() as listener, ours:
        listener.bind(("127.0.0.1", 0))
        ours.sendall(WorkerGroupSecrets(None, "s" * 43).to_json_line())
        played, problems = Played(ours, listener.getsockname()[1]), list[BaseException]()

        def run() -> None:
            try:
                assert played.hear("ready")["about"] > server.limits.drain
                play(played)
            except BaseException as error:
                problems.append(error)
                played.hang_up()

        thread = threading.Thread(target=run)
        thread.start()
        member = WorkerMembership.from_sockets(3, 4, theirs, (listener.fileno(),))
        theirs.detach()
        listener.detach()
        server.observe(metrics=True)
        code = serve_as_worker(server, Address.parse(ON), member, {"metrics": True})
        thread.join(30)
        played.hang_up()
        assert not problems, problems
        return code


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a worker changes in its process is of no concern to other tests."""
    monkeypatch.setattr(worker_module, "WORKER_LINGER_SECONDS", 0.2)
    before = {handler: list(handler.filters) for handler in logging.root.handlers}
    yield
    for handler in logging.root.handlers:
        handler.filters[:] = before[handler]
    faulthandler.unregister(signal.SIGQUIT)


def test_a_worker_answers_its_supervisor_and_asks_about_the_group():
    def play(supervisor: Played) -> None:
        assert supervisor.ask("ping") is None
        assert supervisor.ask("readiness") == [200, "healthy"]
        text = supervisor.ask("metrics", 10_000)
        assert f'defserve_worker_info{{worker="3",pid="{os.getpid()}"}} 1\n' in text
        assert 'defserve_sessions{worker="3"} 0\n' in text
        assert supervisor.ask("metrics", 90).endswith("\n# the rest was left out: it is too long\n")
        found: list[tuple[int, str]] = []

        def call(path: str) -> None:
            found.append(supervisor.get(path))

        for path, asked, value in (  # each caller has its answer before the next one asks
            ("/metrics", "metrics", "of all\n"),
            ("/readyz/group", "state", {"count": 4, "live": 4, "ready": 3, "stopping": False}),
            ("/healthz/group", "state", {"count": 4, "live": 4, "ready": 3, "stopping": False}),
            ("/healthz/group", "state", {"count": 4, "live": 4, "ready": 3, "stopping": True}),
        ):
            caller = threading.Thread(target=call, args=(path,))
            caller.start()
            supervisor.answer(supervisor.hear(asked), value)
            caller.join(30)
        assert found == [
            (200, "of all\n"),
            (503, "3 of 4 workers ready"),
            (200, "4 of 4 workers live"),
            (503, "4 of 4 workers live"),
        ]
        supervisor.send({"ask": 1, "what": "end", "about": None})

    assert work(Server("s"), play) == 0


def test_a_worker_that_leaves_or_has_lost_its_supervisor_ends():
    def leave(supervisor: Played) -> None:
        supervisor.send({"ask": 1, "what": "leave", "about": None})
        assert not any("what" in message for message in supervisor.messages())  # it was told: nobody else has to end

    assert work(Server("s"), leave) == 0
    assert work(Server("s"), Played.hang_up) == 0


def test_a_client_that_ends_a_worker_ends_the_group():
    server = Server("s")

    def play(supervisor: Played) -> None:
        loops = list(server.composition.lives)
        loops[0].call_soon_threadsafe(server.composition.service.stop, 1.0)  # type: ignore[attr-defined]
        supervisor.hear("ended")

    assert work(server, play) == 0


def test_a_group_that_cannot_be_asked_is_not_ready(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_module, "SECONDS", 0.1)

    def play(supervisor: Played) -> None:
        assert supervisor.get("/readyz/group") == (503, "the supervisor does not answer")
        assert 'defserve_sessions{worker="3"} 0' in supervisor.get("/metrics")[1]
        supervisor.hang_up()

    assert work(Server("s"), play) == 0


def test_only_a_child_of_the_supervisor_takes_itself_for_a_worker():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        member = WorkerMembership.from_sockets(2, 4, theirs, (5, 6))
        assert read_worker_membership({WORKER_VARIABLE: member.to_json()}) == member
        for other in (replace(member, inode=member.inode + 1), replace(member, control=10_000)):
            assert read_worker_membership({WORKER_VARIABLE: other.to_json()}) is None
        for text in ("", "{}", "[]", "1", '{"number": 1}'):
            assert read_worker_membership({WORKER_VARIABLE: text}) is None
        assert read_worker_membership({}) is None


def test_a_supervisor_that_is_gone_is_noticed_before_serving():
    ours, theirs = socket.socketpair()
    ours.close()
    member = WorkerMembership.from_sockets(1, 1, theirs, ())
    theirs.detach()
    with pytest.raises(EOFError):
        join_worker_group(member)


@for_each_row(
    "wanted count",
    [(1, 1), ("3", 3), (256, 256), ("auto", None), (0, 0), ("-1", 0), ("257", 0), ("many", 0), ("", 0), ("2.5", 0)],
)
def test_how_many_workers(wanted: int | str, count: int | None):
    if count == 0:
        with pytest.raises(UsageError, match="there cannot be"):
            worker_count(wanted)
    elif count is None:
        assert worker_count(wanted) >= 1
    else:
        assert worker_count(wanted) == count


@for_each_row("on", ["stdio:", "stdio", "mcpx+ws://gateway/ws?topic=demo"])
def test_where_workers_cannot_serve(on: str):
    with pytest.raises(UsageError, match="has one client"):
        supervise_unless_worker(on, "2", local_token=False, log_json=False)
    assert address_of_group("unix:/x").scheme == "unix"


@pytest.mark.anyio
async def test_a_link_answers_both_sides_and_says_when_the_other_is_gone():
    async def answers(what: str, about: Any) -> Any:
        if what == "never":
            await asyncio.sleep(60)
        return [what, about]

    ours, theirs = socket.socketpair()
    one, other = await WorkerLink.open_link(ours, answers), await WorkerLink.open_link(theirs, answers)
    running = [asyncio.create_task(link.run()) for link in (one, other)]
    assert await one.send_request("a", 1, seconds=30) == ["a", 1]
    assert await other.send_request("b", None, seconds=30) == ["b", None]
    with pytest.raises(WorkerLinkLost, match="no answer to 'never' within 0.01 s"):
        await one.send_request("never", seconds=0.01)
    waiting = asyncio.create_task(one.send_request("never", seconds=30))
    await asyncio.sleep(0)
    other.close()
    with pytest.raises(WorkerLinkLost, match="is gone"):
        await waiting
    await asyncio.wait(running, timeout=30)
    assert all(task.done() for task in running)
    one.send("nobody hears it")
