"""Kills workers and receivers while events are emitted, and then checks what each subscription was sent.

Two worker processes share one Redis. Emitters call a tool that emits, and note what was acknowledged. Receivers are
processes of their own. A schedule kills workers, receivers and Redis as `kill -9` does. In the end the log of the
server says which events there are, and in which order; each subscription must have got exactly these.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from defserve import Server
from defserve.auth import ApiKeys
from defserve.auth.principals import Principal, encode_principal
from defserve.protocols.mcp.events.extension import Events
from defserve.protocols.mcp.events.sending import make_webhook_secret
from defserve.protocols.mcp.events.webhook_records import Subscription, WebhookRecords, make_caller_webhook_space
from tests.faults.process import Broken
from tests.listening import find_free_port, request
from tests.raw import PREFIX, STATELESS
from tests.stores.redis_server import RedisServer

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "framework"), str(ROOT)))}
LANES = ("north", "south", "west")
SLOW_LANE = LANES[0]
SLOW_SECONDS = 0.25
EMITTERS = 8
BATCH = 10
REFUSED_PAUSE = 0.25
PATIENCE = 120.0
START_TRIES = 20
SETTLING_SECONDS = 5.0
MAX_SUBSCRIPTION_MB = 100.0


@dataclass
class Tally:
    """What a campaign saw."""

    acknowledged: int = 0
    logged: int = 0
    delivered: int = 0
    duplicates: int = 0
    worker_kills: int = 0
    receiver_kills: int = 0
    redis_kills: int = 0
    emit_seconds: float = 0.0
    seconds: float = 0.0
    lag_seconds: float = 0.0
    slow_behind: int = 0


# -- The processes.


class ReceiverProcess:
    """A receiver at a port that stays its own. `lane` is what it is subscribed to."""

    def __init__(self, folder: Path, lane: str, delay: float = 0.0) -> None:
        self.lane, self.delay, self.secret = lane, delay, make_webhook_secret()
        self.port = find_free_port()
        self.file = folder / f"{self.port}.received"
        self.file.touch()
        self.subscription = ""
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def start(self) -> None:
        """Raises Broken if its port stays taken."""
        words = ("-m", "tests.events.receiver", str(self.port), str(self.file), self.secret, str(self.delay))
        for _ in range(START_TRIES):
            self._process = subprocess.Popen(
                [sys.executable, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=ENVIRONMENT,
                cwd=ROOT,
                text=True,
            )
            assert self._process.stdout is not None
            if self._process.stdout.readline() == "up\n":
                return
            self.kill()
        raise Broken("a receiver did not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def read_received(self) -> list[list[str]]:
        """The lines that were written whole."""
        lines = self.file.read_text().split("\n")[:-1]
        return [words for line in lines if len(words := line.split(" ")) == 4]


class ServedGroup:
    """The workers behind one address, and a client that opens a connection for each request."""

    def __init__(self, port: int, token: str) -> None:
        self.port, self.token = port, token
        self.pids: set[int] = set()

    async def ask(self, method: str, params: Json, token: str | None = None) -> Json:
        """The result of a request. Raises OSError if its worker died, and Broken for an error."""
        meta: Json = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": {}}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        lines = [
            f"mcp-protocol-version: {STATELESS}",
            f"mcp-method: {method}",
            "accept: application/json, text/event-stream",
            f"authorization: Bearer {token or self.token}",
            "connection: close",
        ]
        if method == "tools/call":
            lines.append(f"mcp-name: {params['name']}")
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request(*lines, body=json.dumps(message).encode()))
                answer = await reader.read()
            finally:
                writer.close()
        body = answer.partition(b"\r\n\r\n")[2]
        if not body:
            raise ConnectionResetError("no answer")
        try:
            reply = json.loads(body)
        except ValueError:
            raise ConnectionResetError("half an answer") from None
        if "result" not in reply:
            raise Refusal(reply)
        return reply["result"]


class Refusal(Exception):
    """The server answered with an error."""


@asynccontextmanager
async def serve_group(folder: Path, store: str, workers: int = 2) -> AsyncGenerator[tuple[ServedGroup, ApiKeys]]:
    """The server with its workers, and a key that may do everything here."""
    keys_at, port = str(folder / "keys.json"), find_free_port()
    keys = ApiKeys(keys_at)
    key = await keys.create("campaign", permissions=["ToolsListAll", "ToolInvoke(move)"])
    environment = {**ENVIRONMENT, "CAMPAIGN_STORE": store, "CAMPAIGN_KEYS": keys_at, "DEFSERVE_SECRET": "s" * 32}
    words = (str(Path(__file__).with_name("served.py")), "--on", f"http://127.0.0.1:{port}/mcp")
    more = ("--workers", str(workers)) if workers > 1 else ()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220  (nothing else runs yet)
            [sys.executable, *words, *more], env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        group = ServedGroup(port, key.token)
        try:
            await _wait_until_up(group, process)
            yield group, keys
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _wait_until_up(group: ServedGroup, process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if process.poll() is not None:
                raise Broken("the server ended by itself")
            with suppress(OSError, Refusal):
                await group.ask("events/list", {})
                return
            await asyncio.sleep(0.1)


# -- One campaign.


class Campaign:
    """Emits `events`, kills workers and receivers `kills` times by turns, and Redis `redis_kills` times in between.

    After `seconds` it emits no more. All kills happen by then, whatever was emitted.
    """

    def __init__(self, events: int, kills: int, seed: int, redis_kills: int = 0, seconds: float = float("inf")) -> None:
        self._events, self._kills, self._redis_kills, self._seconds = events, kills, redis_kills, seconds
        self._chance = random.Random(seed)
        self.tally = Tally()
        self._acknowledged: set[str] = set()
        self._logged: set[str] = set()
        self._emitted = 0
        self._began = 0.0

    async def run(self) -> Tally:
        """Raises Broken for what must never happen."""
        began = time.monotonic()
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="events")))
            redis = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
            stack.callback(redis.remove)
            group, _ = await stack.enter_async_context(serve_group(folder, redis.address))
            receivers = [ReceiverProcess(folder, lane) for lane in LANES]
            slow = ReceiverProcess(folder, SLOW_LANE, SLOW_SECONDS)
            for receiver in (*receivers, slow):
                stack.callback(receiver.kill)
                await subscribe(group, receiver)
            start = {lane: (await poll(group, lane, None))["cursor"] for lane in LANES}
            self._began = began_at = time.monotonic()
            emitting = [asyncio.create_task(self._emit(group, emitter)) for emitter in range(EMITTERS)]
            killing = [
                asyncio.create_task(self._kill(group, receivers)),
                asyncio.create_task(self._kill_redis(redis)),
            ]
            try:
                await asyncio.gather(*emitting, *killing)
            except BaseException:
                print((folder / "server.log").read_text()[-4_000:], file=sys.stderr)
                raise
            emitted_at = time.monotonic()
            self.tally.emit_seconds = emitted_at - began_at
            for receiver in receivers:
                logged = await read_log(group, receiver.lane, start[receiver.lane])
                await self.check_receiver(receiver, logged)
            self.tally.lag_seconds = time.monotonic() - emitted_at
            await self._check_slow(group, slow, start)
            missing = self._acknowledged - self._logged
            if missing:
                raise Broken(f"{len(missing)} acknowledged events are not in the log: {sorted(missing)[:5]}")
        self.tally.acknowledged, self.tally.seconds = len(self._acknowledged), time.monotonic() - began
        return self.tally

    async def _emit(self, group: ServedGroup, emitter: int) -> None:
        """Emit batches. What a worker that died had begun may be in the log or not; it is not emitted again."""
        for first in range(0, self._events // EMITTERS, BATCH):
            if time.monotonic() >= self._began + self._seconds:
                return
            lane = LANES[(first // BATCH) % len(LANES)]
            arguments = {"lane": lane, "emitter": emitter, "first": first, "count": BATCH}
            is_acknowledged = False
            with suppress(OSError, Refusal):
                result = await group.ask("tools/call", {"name": "move", "arguments": arguments})
                is_acknowledged = result.get("isError") is not True
                if is_acknowledged:
                    self._acknowledged |= {f"{emitter}-{number}" for number in range(first, first + BATCH)}
                    group.pids.add(int(result["content"][0]["text"]))
            self._emitted += BATCH
            if not is_acknowledged:
                await asyncio.sleep(REFUSED_PAUSE)

    async def _kill(self, group: ServedGroup, receivers: list[ReceiverProcess]) -> None:
        """Kill by a schedule that is spread over the events."""
        for number in range(self._kills):
            await self._wait_until_emitted((number + self._chance.random()) / (self._kills + 1))
            if number % 2:
                victim = self._chance.choice(receivers)
                victim.kill()
                await asyncio.sleep(self._chance.random() * 0.3)
                await asyncio.to_thread(victim.start)
                self.tally.receiver_kills += 1
                continue
            while not group.pids:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            pid = self._chance.choice(sorted(group.pids))
            group.pids.discard(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.tally.worker_kills += 1

    async def _kill_redis(self, redis: RedisServer) -> None:
        """Kill Redis, and start it again with the file that it wrote."""
        for number in range(self._redis_kills):
            await self._wait_until_emitted((number + 0.5) / self._redis_kills)
            await asyncio.to_thread(redis.kill)
            await asyncio.sleep(self._chance.random())
            await asyncio.to_thread(redis.start)
            self.tally.redis_kills += 1

    async def _wait_until_emitted(self, share: float) -> None:
        """Until this share of the events was emitted, or of the time is over."""
        while (  # noqa: ASYNC110  (nobody tells)
            self._emitted < share * (self._events // EMITTERS * EMITTERS)
            and time.monotonic() < self._began + share * self._seconds
        ):
            await asyncio.sleep(0.01)

    async def check_receiver(self, receiver: ReceiverProcess, logged: list[str]) -> None:
        """Wait until a subscription has got the last event of its lane; then compare all of them."""
        changed_at, count = time.monotonic(), -1
        while len(got := {words[0] for words in receiver.read_received()}) < len(set(logged)):
            if len(got) != count:
                changed_at, count = time.monotonic(), len(got)
            elif time.monotonic() > changed_at + PATIENCE:
                missing = [id for id in logged if id not in got]
                raise Broken(f"{receiver.lane}: {len(missing)} of {len(logged)} did not come: {missing[:5]}")
            await asyncio.sleep(0.5)
        received = receiver.read_received()
        for name, id, subscription, _ in received:
            if name != id or subscription != receiver.subscription:
                raise Broken(f"{receiver.lane}: event {name} came as {id} for {subscription}")
        first = list(dict.fromkeys(words[0] for words in received))
        if first != logged:
            at = next(i for i, (one, other) in enumerate(zip(first, logged, strict=False)) if one != other)
            raise Broken(f"{receiver.lane}: {first[at : at + 3]} came where the log has {logged[at : at + 3]}")
        self._logged = self._logged | set(logged)
        self.tally.logged += len(logged)
        self.tally.delivered += len(first)
        self.tally.duplicates += len(received) - len(first)

    async def _check_slow(self, group: ServedGroup, slow: ReceiverProcess, start: dict[str, str]) -> None:
        """The slow one is behind, alone, and what it has is in order."""
        logged = await read_log(group, slow.lane, start[slow.lane])
        first = list(dict.fromkeys(words[0] for words in slow.read_received()))
        if first != logged[: len(first)]:
            raise Broken("the slow receiver got events out of order")
        self.tally.slow_behind = len(logged) - len(first)


async def subscribe(group: ServedGroup, receiver: ReceiverProcess) -> None:
    delivery = {"mode": "webhook", "url": receiver.url, "secret": receiver.secret}
    about = {"name": "moved", "arguments": {"lane": receiver.lane}, "delivery": delivery, "ttlMs": None}
    receiver.subscription = (await group.ask("events/subscribe", about))["id"]


async def poll(group: ServedGroup, lane: str, cursor: str | None) -> Json:
    """One poll, by whichever worker answers."""
    about = {"name": "moved", "arguments": {"lane": lane}, "cursor": cursor}
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await group.ask("events/poll", about)
        except (OSError, Refusal):
            # A worker was killed a moment ago, or has not found Redis again.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


async def read_log(group: ServedGroup, lane: str, cursor: str) -> list[str]:
    """The ids of all events of a lane, in their order."""
    found: list[str] = []
    while True:
        page = await poll(group, lane, cursor)
        if page["truncated"]:
            raise Broken("the log has lost events")
        found += [event["eventId"] for event in page["events"]]
        if not page["hasMore"]:
            return found
        cursor = page["cursor"]


# -- How much memory subscriptions take.


async def measure_subscriptions(count: int, callers: int = 100) -> tuple[float, float]:
    """Megabytes that the server grows by with so many webhooks, and the seconds until one of them gets an event.

    They are written into the store, where the server finds them, as after a restart.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="events")))
        redis = RedisServer().start()
        stack.callback(redis.remove)
        group, _ = await stack.enter_async_context(serve_group(folder, redis.address, workers=1))
        receiver = ReceiverProcess(folder, "lane 0")
        stack.callback(receiver.kill)
        await subscribe(group, receiver)
        pid = await _emit_one(group, "nowhere", 0)
        before = read_memory(pid)
        await write_subscriptions(redis.address, receiver, count, callers)
        began = time.monotonic()
        await _emit_one(group, f"lane {count}", 1)
        while not receiver.read_received():
            if time.monotonic() > began + PATIENCE:
                raise Broken("an event did not come to one of many subscriptions")
            await asyncio.sleep(0.05)
        await asyncio.sleep(SETTLING_SECONDS)
        began, seen = time.monotonic(), len(receiver.read_received())
        await _emit_one(group, f"lane {count}", 2)
        while len(receiver.read_received()) == seen and time.monotonic() < began + PATIENCE:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return read_memory(pid) - before, time.monotonic() - began


async def _emit_one(group: ServedGroup, lane: str, number: int) -> int:
    """Emit an event; the process that did."""
    arguments = {"lane": lane, "emitter": 0, "first": number, "count": 1}
    called = await group.ask("tools/call", {"name": "move", "arguments": arguments})
    return int(called["content"][0]["text"])


async def write_subscriptions(address: str, receiver: ReceiverProcess, count: int, callers: int) -> None:
    """Webhooks of many callers, each with a lane of its own: `lane 1` and so on."""
    server = Server("campaign", "1", store=address, experimental=["events"])
    events = next(each for each in server.extensions if isinstance(each, Events))
    records, start = WebhookRecords(events.store, None), await events.log.ensure_end_cursor("moved")
    for number in range(1, count + 1):
        caller = Principal(f"caller-{number % callers}")
        wanted = Subscription(
            id=f"sub_{number:032x}",
            name="moved",
            url=receiver.url,
            arguments={"lane": f"lane {number}"},
            caller=encode_principal(caller),
            dialect="sep",
            secrets=[],
            expires=None,
        )
        await records.store_subscription(make_caller_webhook_space(caller), wanted, receiver.secret, start, most=count)
    await events.store.close()


def read_memory(pid: int) -> float:
    """Megabytes that a process has in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
