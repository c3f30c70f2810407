"""Webhooks (MCP Events): an address from a stranger reaches nothing here, and a caller touches only what is its own."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from io import StringIO
from typing import Any

from defserve.auth import ApiKeys
from defserve.protocols.mcp.events.sending import DeliveryFailed, WebhookSender, make_webhook_secret
from defserve.server import EventSettings
from defserve.testing import WebhookReceiver
from tests.attack.controls.rules import (
    believe_every_challenge,
    connect_webhooks_anywhere,
    follow_redirects_of_webhooks,
    forget_whose_a_webhook_is,
    keep_any_number_of_webhooks,
    read_long_answers_of_webhooks,
    repeat_webhook_secrets,
    take_any_webhook_url,
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
) -> AsyncGenerator[tuple[int, list[None]]]:
    """The port of a listener on this machine, and a list that grows with each connection."""
    connections: list[None] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(None)
        with suppress(asyncio.CancelledError, asyncio.IncompleteReadError):
            await respond(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], connections
    finally:
        server.close()


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


def _run(work: Any) -> Any:
    return asyncio.run(work)
