"""Webhooks (MCP Events): an address from a stranger reaches nothing here, and a caller touches only what is its own."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from io import StringIO
from typing import Any

from defserve.auth import ApiKeys
from defserve.auth.rates import Rate, RateBuckets
from defserve.protocols.mcp.events import sending
from defserve.protocols.mcp.events.sending import (
    DeliveryFailed,
    WebhookSender,
    make_webhook_secret,
    parse_webhook_secret,
    sign_webhook,
)
from defserve.server import EventSettings
from defserve.testing import WebhookReceiver
from tests.attack.controls.rules import (
    believe_every_challenge,
    connect_webhooks_anywhere,
    follow_redirects_of_webhooks,
    forget_whose_a_webhook_is,
    give_all_room_to_one_webhook,
    keep_any_number_of_webhooks,
    read_long_answers_of_webhooks,
    repeat_webhook_secrets,
    take_any_webhook_url,
    take_old_webhooks,
    wait_for_webhooks_without_end,
)
from tests.attack.trial import Control, Family, Trial
from tests.listening import Listening, listening
from tests.protocols.mcp.events.repositories import SEP, make_server
from tests.raw import PREFIX, STATELESS, raw

FAMILY = Family("webhooks")
LOOPBACK = EventSettings(allow_loopback=True)
Json = dict[str, Any]

URLS = {
    "http": "http://hook.example.com/",
    "loopback": "https://127.0.0.1/",
    "loopback by name": "https://localhost/",
    "loopback, short": "https://127.1/",
    "loopback, decimal": "https://2130706433/",
    "loopback, octal": "https://0177.0.0.1/",
    "loopback, hexadecimal": "https://0x7f000001/",
    "loopback, IPv6": "https://[::1]/",
    "loopback, mapped": "https://[::ffff:127.0.0.1]/",
    "loopback, NAT64": "https://[64:ff9b::7f00:1]/",
    "nowhere": "https://0.0.0.0/",
    "private": "https://10.0.0.1/",
    "private, 172": "https://172.16.0.1/",
    "private, 192": "https://192.168.1.1/",
    "private, IPv6": "https://[fd00::1]/",
    "link-local": "https://169.254.169.254/latest/meta-data/",
    "link-local, IPv6": "https://[fe80::1]/",
    "carrier": "https://100.64.0.1/",
    "multicast": "https://224.0.0.1/",
    "metadata by name": "https://metadata.google.internal/",
    "a cluster": "https://api.default.svc/",
    "another port": "https://hook.example.com:8443/",
    "a user": "https://hook.example.com@127.0.0.1/",
    "a backslash": "https://hook.example.com\\@127.0.0.1/",
    "full-width digits": "https://１２７.0.0.1/",
    "a line break": "https://hook.example.com/\r\nx-y: z",
    "a fragment": "https://hook.example.com/#@127.0.0.1",
    "a file": "file:///etc/passwd",
}


@FAMILY.attack(
    "an address that is not public", Control(take_any_webhook_url, "link-local: is taken", "link-local", here=True)
)
def _(trial: Trial) -> None:
    sender = _run(_make_sender())
    for name, url in trial.choose(URLS):
        try:
            sender.check_url(url)
        except ValueError:
            trial.expect(True, "")
        else:
            trial.expect(False, f"{name}: is taken: {url}")


async def _make_sender(**options: Any) -> WebhookSender:
    return WebhookSender(EventSettings(**options))


# What a name leads to, the first time and each time after that.
ANSWERS: dict[str, list[list[str]]] = {
    "loopback": [["127.0.0.1"]],
    "one of two is private": [["93.184.216.34", "127.0.0.1"]],
    "mapped": [["::ffff:127.0.0.1"]],
    "another one the second time": [["127.0.0.1"], ["127.0.0.1"]],
}


@FAMILY.attack(
    "a name that leads to this machine", Control(connect_webhooks_anywhere, "loopback: reached", "loopback", here=True)
)
def _(trial: Trial) -> None:
    for name, answers in trial.choose(ANSWERS):
        trial.expect(_run(_count_connections(answers)) == 0, f"{name}: reached this machine")


async def _count_connections(answers: list[list[str]]) -> int:
    """How often a listener here is connected to, by a name with these addresses."""
    async with _listener(lambda reader, writer: _hang_up(writer)) as (port, connections):

        async def resolve(host: str, port: int) -> Sequence[str]:
            return answers[min(len(asked), len(answers) - 1)]

        asked: list[str] = []
        sender = WebhookSender(EventSettings(webhook_ports=[port]), resolver=resolve)
        for _ in range(2):
            try:
                await sender.post(f"https://hook.example.com:{port}/", {}, b"{}")
            except DeliveryFailed as failed:
                asked.append(failed.reason)
        await sender.aclose()
        return len(connections)


@FAMILY.attack("a redirect", Control(follow_redirects_of_webhooks, "was followed", here=True))
def _(trial: Trial) -> None:
    for status in (301, 302, 303, 307, 308):
        trial.expect(_run(_follow_redirect(status)) == 0, f"{status}: was followed")


async def _follow_redirect(status: int) -> int:
    async with _listener(lambda reader, writer: _hang_up(writer)) as (hidden, reached):
        answer = (
            f"HTTP/1.1 {status} Moved\r\nlocation: http://127.0.0.1:{hidden}/\r\ncontent-length: 0\r\n\r\n".encode()
        )

        async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await _hang_up(writer)

        async with _listener(redirect) as (port, _):
            sender = WebhookSender(LOOPBACK, is_loopback_allowed=True)
            try:
                await sender.post(f"http://127.0.0.1:{port}/", {}, b"{}")
            except DeliveryFailed:
                pass
            await sender.aclose()
        return len(reached)


@FAMILY.attack("an answer without an end", Control(read_long_answers_of_webhooks, "bytes were read", here=True))
def _(trial: Trial) -> None:
    for head in ("transfer-encoding: chunked", "content-length: 100000000", "connection: close"):
        sent = _run(_count_sent(head))
        trial.expect(sent < 8_000_000, f"{head}: {sent} bytes were read")


async def _count_sent(head: str) -> int:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
        piece = b"x" * 65_536
        try:
            while sent < 32_000_000:
                writer.write(b"10000\r\n" + piece + b"\r\n" if "chunked" in head else piece)
                await writer.drain()
                sent += len(piece)
        except OSError:
            pass
        await _hang_up(writer)

    async with _listener(pour) as (port, _):
        sender = WebhookSender(LOOPBACK, is_loopback_allowed=True)
        try:
            await sender.post(f"http://127.0.0.1:{port}/", {}, b"{}", reads_answer=True)
        except DeliveryFailed:
            pass
        await sender.aclose()
    return sent


SLOW: dict[str, tuple[bytes, ...]] = {
    "nothing": (),
    "a head, letter by letter": (b"HTTP/1.1 200 OK\r\n", *[b"x"] * 10_000),
    "a body, letter by letter": (b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n", *[b"x"] * 10_000),
}
PATIENCE = sending.TIMEOUT_SECONDS + 5


@FAMILY.attack("a slow answer", Control(wait_for_webhooks_without_end, "is still waited for", here=True))
def _(trial: Trial) -> None:
    for name, is_over in _run(_wait_for_slow_answers(dict(trial.choose(SLOW)))).items():
        trial.expect(is_over, f"{name}: is still waited for")


async def _wait_for_slow_answers(answers: dict[str, tuple[bytes, ...]]) -> dict[str, bool]:
    """Whether each answer is given up in time. They come at the same time."""

    async def is_given_up(pieces: tuple[bytes, ...]) -> bool:
        async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            with suppress(OSError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.05)
                await reader.read()
            await _hang_up(writer)

        async with _listener(trickle) as (port, _):
            sender = WebhookSender(LOOPBACK, is_loopback_allowed=True)
            posting = asyncio.create_task(sender.post(f"http://127.0.0.1:{port}/", {}, b"{}", reads_answer=True))
            await asyncio.wait((posting,), timeout=PATIENCE)
            is_over = posting.done()
            posting.cancel()
            await asyncio.gather(posting, return_exceptions=True)
            await sender.aclose()
            return is_over

    return dict(zip(answers, await asyncio.gather(*map(is_given_up, answers.values())), strict=True))


@FAMILY.attack("a receiver that never answers", Control(give_all_room_to_one_webhook, "holds up", here=True))
def _(trial: Trial) -> None:
    many = [(f"127.0.0.{2 + number % 20}", "mallory") for number in range(160)]
    for name, silent in (("one host", [("127.0.0.2", str(number)) for number in range(160)]), ("one caller", many)):
        trial.expect(_run(_post_beside_silence(silent)), f"{name}: holds up another's webhook")


async def _post_beside_silence(silent: list[tuple[str, str]]) -> bool:
    """Whether a webhook is delivered while these hosts say nothing to those of these callers."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await _hang_up(writer)

    with WebhookReceiver() as receiver:
        async with _listener(say_nothing, sorted({host for host, _ in silent})) as (port, _):
            sender = WebhookSender(LOOPBACK, is_loopback_allowed=True)
            # Otherwise the rate of one host would hold most of them back.
            sender._rates = RateBuckets(Rate(per_second=10_000, burst=10_000))  # pyright: ignore[reportPrivateUsage]
            waiting = [
                asyncio.create_task(sender.post(f"http://{host}:{port}/", {}, b"{}", caller=caller))
                for host, caller in silent
            ]
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(sending.TIMEOUT_SECONDS / 2):
                    await sender.post(receiver.url, {}, b"{}", caller="alice")
            except DeliveryFailed:
                return True  # it is not signed, so it is refused, but it was sent
            except TimeoutError:
                return False
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                await sender.aclose()
    return True


@FAMILY.attack("a request that is sent again", Control(take_old_webhooks, "later: is taken", here=True))
def _(trial: Trial) -> None:
    taken, later, changed = _run(_replay())
    trial.expect(taken == 1, f"at once: is taken {taken} times")
    trial.expect(later == 0, "ten minutes later: is taken")
    trial.expect(changed == 0, "with another time: is taken")


async def _replay() -> tuple[int, int, int]:
    """How often one signed request is taken: sent twice; by a receiver ten minutes later; with another time."""
    sender, counts = WebhookSender(LOOPBACK, is_loopback_allowed=True), list[int]()
    body = json.dumps(
        {"eventId": "evt_1", "name": "pushed", "timestamp": "2026-11-18T00:00:00Z", "data": {}, "cursor": None}
    ).encode()
    with WebhookReceiver() as first:
        now, secret = time.time(), first.secret
        signed = sign_webhook([parse_webhook_secret(secret)], "evt_1", int(now), body)
        headers = {**signed, "x-mcp-subscription-id": "sub_1"}
        for _ in range(2):
            await sender.post(first.url, headers, body)
        counts.append(len(first.events))
    for sent in (headers, {**headers, "webhook-timestamp": str(int(now) + 600)}):
        with WebhookReceiver(clock=lambda: now + 600) as receiver:
            receiver.secrets = [secret]
            with suppress(DeliveryFailed):
                await sender.post(receiver.url, sent, body)
            counts.append(len(receiver.events))
    await sender.aclose()
    return counts[0], counts[1], counts[2]


# -- callers ---------------------------------------------------------------------------------------------

CHALLENGES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"ok",
    "another number": b'{"challenge":"guess"}',
    "no text": b'{"challenge":null}',
    "a list": b'["challenge"]',
    "very deep": b"[" * 10_000,
}


@FAMILY.attack(
    "an address that did not ask for events",
    Control(believe_every_challenge, "nothing: is taken", "nothing", here=True),
)
def _(trial: Trial) -> None:
    for name, answer in trial.choose(CHALLENGES):
        error = _run(_subscribe_to(answer))
        trial.expect(error == "challenge_failed", f"{name}: is taken: {error}")


async def _subscribe_to(answer: bytes) -> str:
    """The reason for which an address is refused that answers its challenge so."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(answer)}\r\n\r\n".encode() + answer)
        await _hang_up(writer)

    async with _listener(respond) as (port, _), raw(make_server(settings=LOOPBACK)) as peer:
        reply = await peer.ask("events/subscribe", _about(f"http://127.0.0.1:{port}/", make_webhook_secret()))
        return reply.get("error", {}).get("data", {}).get("reason", "")


@FAMILY.attack("another caller's webhook", Control(forget_whose_a_webhook_is, "was ended", here=True))
def _(trial: Trial) -> None:
    trial.expect(not _run(_end_anothers()), "a webhook was ended by another caller")


async def _end_anothers() -> bool:
    keys = ApiKeys("memory:")
    with WebhookReceiver() as receiver:
        async with listening(make_server(settings=LOOPBACK, auth=keys)) as where:
            alice, mallory = [(await keys.create(name)).token for name in ("alice", "mallory")]
            about = _about(receiver.url, receiver.secret)
            assert "result" in await _ask(where, "events/subscribe", about, alice)
            return "result" in await _ask(where, "events/unsubscribe", about, mallory)


@FAMILY.attack("a flood of one caller", Control(keep_any_number_of_webhooks, "are kept", here=True))
def _(trial: Trial) -> None:
    kept = _run(_flood())
    trial.expect(kept <= 3, f"{kept} webhooks of one caller are kept")


async def _flood() -> int:
    settings = EventSettings(allow_loopback=True, webhooks=3)
    with WebhookReceiver() as receiver:
        async with raw(make_server(settings=settings)) as peer:
            asked = [
                await peer.ask(
                    "events/subscribe",
                    {**_about(receiver.url, receiver.secret), "arguments": {"repository": str(number)}},
                )
                for number in range(8)
            ]
    return sum("result" in reply for reply in asked)


@FAMILY.attack("a secret in errors and logs", Control(repeat_webhook_secrets, "is repeated", here=True))
def _(trial: Trial) -> None:
    for secret in ("whsec_" + "c2VjcmV0" * 2, "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", make_webhook_secret()):
        trial.expect(secret not in _run(_collect_texts(secret)), f"a secret is repeated: {secret}")


async def _collect_texts(secret: str) -> str:
    """Everything that is said of a subscription whose address does not answer."""
    written, root = StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(written), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        async with raw(make_server(settings=LOOPBACK)) as peer:
            reply = await peer.ask("events/subscribe", _about("http://127.0.0.1:9/", secret))
            assert "error" in reply
            return json.dumps(reply) + written.getvalue()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


# -- what they share -------------------------------------------------------------------------------------


def _about(url: str, secret: str) -> Json:
    delivery = {"mode": "webhook", "url": url, "secret": secret}
    return {"name": "pushed", "arguments": {"repository": "x"}, "delivery": delivery}


async def _ask(where: Listening, method: str, params: Json, token: str) -> Json:
    meta = {PREFIX + "protocolVersion": STATELESS, PREFIX + "clientCapabilities": SEP}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    lines = (
        f"mcp-protocol-version: {STATELESS}",
        f"mcp-method: {method}",
        "accept: application/json, text/event-stream",
        f"authorization: Bearer {token}",
    )
    return json.loads((await where.ask(*lines, body=json.dumps(body).encode())).partition(b"\r\n\r\n")[2])


@asynccontextmanager
async def _listener(
    respond: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    hosts: Sequence[str] = ("127.0.0.1",),
) -> AsyncGenerator[tuple[int, list[None]]]:
    """The port of a listener on this machine, and a list that grows with each connection."""
    connections: list[None] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(None)
        with suppress(asyncio.CancelledError, asyncio.IncompleteReadError):
            await respond(reader, writer)

    async with AsyncExitStack() as stack:
        port = 0
        for host in hosts:
            server = await asyncio.start_server(accept, host, port)
            stack.callback(server.close)
            port = server.sockets[0].getsockname()[1]
        yield port, connections


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


def _run(work: Any) -> Any:
    return asyncio.run(work)
