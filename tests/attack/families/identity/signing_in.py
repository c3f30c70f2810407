"""Sign-ins: nobody comes in, or gets a code or a token, by another's yes, another's address or another's token."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from ipaddress import IPv4Address
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from defserve.auth.proxy.clients import MAX_DOCUMENT_BYTES, ClientDocuments
from defserve.auth.proxy.sign_in import ConsentCookies
from defserve.auth.proxy.site_messages import OAuthError
from defserve.errors import LimitExceeded
from defserve.guard.http_client import GuardedClient
from defserve.guard.network import Egress, judge_url_and_addresses
from tests.attack.arena import Kind, Served
from tests.attack.controls.identity import (
    believe_documents,
    compare_nothing,
    fetch_from_anywhere,
    redirect_anywhere,
    remember_every_client,
    take_consent_from_any_site,
    take_grants_again,
    take_long_documents,
    wait_for_documents,
)
from tests.attack.speaking.browser import ORIGIN, Browser, Client, leads_to, said, sealed, target_of
from tests.attack.speaking.http import Response
from tests.attack.speaking.mcp import Caller
from tests.attack.trial import Control, Family, MissingFeature, Trial
from tests.auth.vendor import FakeVendor, vendor_at_address
from tests.client.web import Exchange, web

FAMILY = Family("signing in")
DOCUMENT_PORT = 8443
"""A port that the address of a document may have, so that it is not held for its port."""
PATIENCE, MOST_WRITTEN = 9.0, 4_000_000


class Scene:
    """A server, its vendor, and one user's browser with one client."""

    def __init__(self, trial: Trial, vendor: FakeVendor, served: Served) -> None:
        self.trial, self.vendor, self.served = trial, vendor, served
        self.user = Browser(served.place)
        self.client = Client(self.user)

    def consent(self, client: Client | None = None, **changed: Any) -> Response:
        return (client or self.client).browser.get("/authorize", (client or self.client).request(**changed))

    def allow(self, page: Response, browser: Browser | None = None, **more: str) -> Response:
        form = {"request": sealed(page), "decision": "allow"}
        return (browser or self.user).post("/consent", form, **{"Origin": ORIGIN, **more})

    def come_back(self, left: Response, browser: Browser | None = None) -> Response:
        return (browser or self.user).get(target_of(self.vendor.sign_in(leads_to(left))))

    def code(self, client: Client | None = None) -> str:
        client = client or self.client
        left = self.allow(self.consent(client), client.browser)
        return said(self.come_back(left, client.browser))["code"]

    def tokens(self, client: Client | None = None) -> dict[str, Any]:
        return json.loads((client or self.client).exchange(self.code(client)).body)

    def calls(self, token: str) -> bool:
        caller = Caller(self.served.place, token)
        return caller.call_alone("who")["status"] == 200

    def works(self) -> None:
        """An honest sign-in still works, so what was refused was not refused by chance."""
        token = self.tokens().get("access_token", "")
        self.trial.expect(self.calls(token), "an honest sign-in does not work")


@contextmanager
def scene(trial: Trial) -> Iterator[Scene]:
    with vendor_at_address() as vendor:
        store = str(trial.arena.folder / f"grants-{time.monotonic_ns()}.db")
        served = trial.arena.serve(Kind("signed_in").with_env(VENDOR=vendor.issuer, STORE=store))
        try:
            yield Scene(trial, vendor, served)
        finally:
            trial.arena.drop(served)


@FAMILY.attack("open redirects", Control(redirect_anywhere, "^redirect_uri="))
def _(trial: Trial) -> None:
    with scene(trial) as at:
        for bad in (
            "https://evil.example/callback",
            "http://127.0.0.1.evil.example:3333/callback",
            "http://127.0.0.1:3333@evil.example/callback",
            "http://127.0.0.1:3333\\@evil.example/callback",
            "http://127.0.0.1:3333/callback/../../evil",
            "http://127.0.0.1:3333/callback#@evil.example",
            "http://localhost:3333/callback",
            "http://127.0.0.2:3333/callback",
            "http://[::1]:3333/callback",
            "http://[::ffff:127.0.0.1]:3333/callback",
            "http://127.1:3333/callback",
            "http://2130706433:3333/callback",
            "http://127.0.0.1:99999/callback",
            "http://127.0.0.1:3333/callback/",
            "http://127.0.0.1:3333/callback?next=https://evil.example",
            "http://127.0.0.1:3333/Callback",
            "http://127.0.0.1:3333/%63allback",
            "http://127.0.0.1:3333/callback;x",
            "http://127.0.0.1:3333//callback",
            "https://127.0.0.1:3333/callback",
            "http://127.0.0.1:80:3333/callback",
            "http://127.0.0.1:@evil.example/callback",
            "http://evil.example#@127.0.0.1:3333/callback",
            "http://127.0.0.1\u3002evil.example/callback",
            "//evil.example/callback",
            "javascript:alert(1)",
            "http://127.0.0.1:3333/callback\r\nLocation: https://evil.example",
            "",
        ):
            answer = at.consent(redirect_uri=bad)
            held = answer.status == 400 and not leads_to(answer) and not sealed(answer)
            trial.expect(held, f"redirect_uri={bad!r}: {answer.status} to {leads_to(answer)!r}")
        for bad in (
            "javascript:alert(1)",
            "data:text/html,x",
            "http://evil.example/cb",
            "https://u@evil.example/",
            "//x",
        ):
            trial.expect(not Client(at.user, bad).registered, f"{bad!r} can be registered")
        both = [*at.client.request().items(), ("redirect_uri", "https://evil.example/cb")]
        answer = at.user.get(f"/authorize?{urlencode(both)}")
        trial.expect(answer.status == 400 and not leads_to(answer), "two redirects: one of them is used")
        at.works()


@FAMILY.attack("consent pressed by another site", Control(take_consent_from_any_site, "^{.Origin.*: 200"))
def _(trial: Trial) -> None:
    with scene(trial) as at:
        for more in (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://localhost:8081"},
            {"Sec_Fetch_Site": "cross-site"},
            {"Sec_Fetch_Site": "same-site"},
        ):
            answer = at.allow(at.consent(), **more)
            trial.expect(answer.status == 403 and not leads_to(answer), f"{more}: {answer.status}")
        # The attacker has a page of its own, and has the user's browser send its form.
        thief = Browser(at.served.place)
        page = at.consent(Client(thief, "https://evil.example/cb"))
        answer = at.allow(page)
        trial.expect(answer.status == 403 and not leads_to(answer), f"another browser's form: {answer.status}")
        for other in ("", "x", at.client.id, at.code()):
            answer = at.user.post("/consent", {"request": other, "decision": "allow"}, Origin=ORIGIN)
            trial.expect(answer.status == 400 and not leads_to(answer), f"another form: {answer.status}")
        page = at.consent()
        framed = page.headers.get("content-security-policy", "")
        trial.expect("frame-ancestors 'none'" in framed, "the page can be framed")
        trial.expect(page.headers.get("x-frame-options") == "DENY", "the page can be framed by old browsers")
        at.works()


@FAMILY.attack("confused deputy", Control(remember_every_client, "another client is not asked for"))
def _(trial: Trial) -> None:
    """The user has allowed one client, and is signed in at the vendor. Another client must not profit."""
    with scene(trial) as at:
        at.works()
        evil = Client(at.user, "https://evil.example/cb", "a client")
        answer = at.consent(evil)
        trial.expect(
            answer.status == 200 and sealed(answer) and not leads_to(answer), "another client is not asked for"
        )
        trial.expect("evil.example" in answer.text, "the page does not say where the code goes")
        # The attacker allows it in a browser of its own, and sends the user the vendor's address.
        thief = Browser(at.served.place)
        left = at.allow(at.consent(Client(thief, "https://evil.example/cb")), thief)
        back = at.come_back(left)
        trial.expect(back.status == 403 and "code" not in said(back), f"another browser's sign-in: {back.status}")
        # The vendor's own address, with a state that nobody has asked for.
        fields = dict(parse_qsl(urlsplit(leads_to(left)).query))
        for state in ("", "x" * 43, fields["state"], fields["state"][:16] + "x" * 27):
            back = at.user.get("/callback", {"code": "vendor-code", "state": state, "iss": at.vendor.issuer})
            trial.expect(back.status == 403 and not leads_to(back), f"state {state!r}: {back.status}")
        # Somebody else at the vendor: signed in, and not on the list.
        at.vendor.user = {"sub": "mallory", "email": "alice@example.com", "email_verified": False}
        answer = at.come_back(at.allow(at.consent()))
        trial.expect(said(answer).get("error") == "access_denied", "an address that is not verified is believed")


@FAMILY.attack("code injection", Control(compare_nothing, "^another verifier: 200"))
def _(trial: Trial) -> None:
    with scene(trial) as at:
        other = Client(Browser(at.served.place))
        for name, changed in {
            "another verifier": {"code_verifier": other.verifier},
            "another client": {"client_id": other.id},
            "another redirect": {"redirect_uri": "https://evil.example/cb"},
            "another resource": {"resource": "https://evil.example/mcp"},
            "no verifier": {"code_verifier": ""},
        }.items():
            answer = at.client.exchange(at.code(), **changed)
            trial.expect(answer.status == 400, f"{name}: {answer.status}")
        code = at.code()
        trial.expect(at.client.exchange(code).status == 200, "an honest exchange fails")
        trial.expect(at.client.exchange(code).status == 400, "a code is good twice")
        for weak in (
            {"code_challenge_method": "plain"},
            {"code_challenge_method": "s256"},
            {"code_challenge_method": ""},
            {"code_challenge": "", "code_challenge_method": ""},
            {"code_challenge": ""},
            {"code_challenge": "A" * 42},
            {"code_challenge": at.client.verifier},
        ):
            page = at.consent(**weak)
            trial.expect(page.status == 400 and not sealed(page) and not leads_to(page), f"without PKCE: {weak}")
        # The answer of another vendor, or of another sign-in at the same one.
        for wrong in ("https://evil.example", f"{at.vendor.issuer}/"):
            left = at.allow(at.consent())
            fields = {**dict(parse_qsl(urlsplit(at.vendor.sign_in(leads_to(left))).query)), "iss": wrong}
            trial.expect("code" not in said(at.user.get("/callback", fields)), f"an answer of {wrong}")
        first, second = (at.allow(at.consent()) for _ in range(2))
        stolen = dict(parse_qsl(urlsplit(at.vendor.sign_in(leads_to(first))).query))["code"]
        mine = dict(parse_qsl(urlsplit(at.vendor.sign_in(leads_to(second))).query))
        trial.expect(
            "code" not in said(at.user.get("/callback", {**mine, "code": stolen})), "a code of another sign-in"
        )
        at.works()


@FAMILY.attack("token substitution", Control(compare_nothing, "another client's token"))
def _(trial: Trial) -> None:
    with scene(trial) as at:
        code = at.code()
        tokens = json.loads(at.client.exchange(code).body)
        trial.expect("vendor" not in json.dumps(tokens), "the vendor's token reaches the client")
        for name, other in {
            "refresh token": tokens["refresh_token"],
            "code": code,
            "client id": at.client.id,
            "vendor's token": "vendor-access-1",
            "changed token": tokens["access_token"][:-2] + "AA",
            "empty": "x",
        }.items():
            trial.expect(not at.calls(other), f"a {name} passes for an access token")
        for name, other in {"access token": tokens["access_token"], "code": code}.items():
            form = {"grant_type": "refresh_token", "refresh_token": other, "client_id": at.client.id}
            trial.expect(at.user.post("/token", form).status == 400, f"a {name} passes for a refresh token")
        thief = Client(Browser(at.served.place))
        form = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
        trial.expect(
            thief.browser.post("/token", {**form, "client_id": thief.id}).status == 400, "another client's token"
        )
        trial.expect(
            at.user.post("/token", {**form, "client_id": at.client.id}).status == 200, "an honest refresh fails"
        )
        trial.expect(
            at.user.post("/token", {**form, "client_id": at.client.id}).status == 400, "a refresh token is reused"
        )
        at.works()


def _bind_alone(trial: Trial) -> socket.socket:
    for _ in range(20):
        with suppress(OSError):  # the control of this row runs beside it, with the same random numbers
            host = str(IPv4Address((127 << 24) + trial.random.randrange(2**16, 2**24 - 2)))
            return socket.create_server((host, DOCUMENT_PORT))
    raise MissingFeature(f"nothing can listen on port {DOCUMENT_PORT} of 127.0.0.0/8")


@contextmanager
def listening_inside(trial: Trial) -> Iterator[tuple[int, int, list[Any]]]:
    """An address of this machine that nobody else uses, as a number; a port that documents may have; who came."""
    came: list[Any] = []
    with _bind_alone(trial) as inside:
        address = int(IPv4Address(inside.getsockname()[0]))

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, peer = inside.accept()
                    came.append(peer)
                    connection.close()

        thread = Thread(target=accept, daemon=True)
        thread.start()
        yield address, DOCUMENT_PORT, came
        inside.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@FAMILY.attack(
    "documents of clients at private addresses",
    Control(fetch_from_anywhere, "^an address of this machine was asked", "this machine"),
)
def _(trial: Trial) -> None:
    with scene(trial) as at, listening_inside(trial) as (number, port, came):
        quad = str(IPv4Address(number))
        hosts = {
            "this machine": quad,
            "a number": f"{number}", "hexadecimal": f"0x{number:x}", "hexadecimal parts": f"0x7f.{quad[4:]}",
            "octal": f"0177.{quad[4:]}", "two parts": f"127.{number & 0xFFFFFF}", "in IPv6": f"[::ffff:{quad}]",
            "in IPv6, hexadecimal": f"[::ffff:{number >> 16:x}:{number & 0xFFFF:x}]",
            "translated": f"[64:ff9b::{number >> 16:x}:{number & 0xFFFF:x}]",
            "with a dot": f"{quad}.", "wide digits": quad.translate({48 + n: 0xFF10 + n for n in range(10)}),
            "by name": "localhost", "by name, with a dot": "localhost.", "below a name": "x.localhost",
            "IPv6": "[::1]", "any": "0.0.0.0", "any, in IPv6": "[::]", "10": "10.0.0.1", "192": "192.168.0.1",
            "172": "172.16.0.1", "metadata": "169.254.169.254", "metadata by name": "metadata.google.internal",
            "printers": "printer.local", "local IPv6": "[fd00::1]", "linked": "[fe80::1]", "shared": "100.64.0.1",
        }  # fmt: skip
        for count, (name, host) in enumerate(trial.choose(hosts)):
            # From many addresses: one may look up a few clients only, and that would hold the others.
            browser = Browser(replace(at.served.place, source=f"127.0.0.{2 + count // 5}"))
            began = time.monotonic()
            answer = browser.get("/authorize", at.client.request(client_id=f"https://{host}:{port}/client.json"))
            # In a control the server comes to this address before it answers. Later ones come a moment later.
            trial.expect(not came, f"an address of this machine was asked ({name}: {host})")
            trial.expect(answer.status == 400 and not leads_to(answer), f"{host}: {answer.status}")
            trial.expect("too many clients" not in answer.text, f"{host}: held only because there were so many")
            trial.expect(time.monotonic() - began < 4, f"{host}: it tried to connect")
        for odd in (f"http://{quad}:{port}/c", f"HTTPS://{quad}:{port}/c", "file:///etc/passwd", "https://"):
            trial.expect(at.consent(client_id=odd).status == 400, odd)
        trial.expect(not came, "an address of this machine was asked")
        at.works()


@FAMILY.attack("cookies planted in the user's browser", Control(take_consent_from_any_site, "^the attacker's form"))
def _(trial: Trial) -> None:
    """A neighbour by name, or a page without https, has put the attacker's own cookies there."""
    with scene(trial) as at:
        thief = Browser(at.served.place)
        page = at.consent(Client(thief, "https://evil.example/cb"))
        at.user.cookies |= thief.cookies
        for more in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"}):
            answer = at.allow(page, **more)
            trial.expect(answer.status == 403 and not leads_to(answer), f"the attacker's form, {more}: {answer.status}")
        honest = at.consent()
        (name, value), *_ = [pair for pair in at.user.cookies.items() if pair not in thief.cookies.items()]
        twice = at.allow(honest, Cookie=f"{name}={next(iter(thief.cookies.values()))}; {name}={value}")
        trial.expect(twice.status == 403 and not leads_to(twice), f"two cookies of one name: {twice.status}")
        cookie = ConsentCookies("https://tools.example").make_cookie("consent-1", "x", 60, "Strict")[1]
        held = cookie.startswith("__Host-") and "; Secure" in cookie and "; Path=/;" in cookie
        trial.expect(held and "domain" not in cookie.lower(), f"a neighbour by name can plant a cookie: {cookie}")
        at.user.cookies.clear()
        at.works()


@FAMILY.attack("tokens that come back", Control(take_grants_again, "^a code is good twice"))
def _(trial: Trial) -> None:
    """Whoever has stolen a refresh token or a code uses it after its owner has, or before."""
    with scene(trial) as at:
        for name in ("code", "refresh token"):
            code = at.code()
            first = json.loads(at.client.exchange(code).body)
            form = {"grant_type": "refresh_token", "client_id": at.client.id}
            latest = json.loads(at.user.post("/token", {**form, "refresh_token": first["refresh_token"]}).body)
            trial.expect(at.calls(latest["access_token"]), "an honest refresh does not work")
            if name == "code":
                again = at.client.exchange(code)
            else:
                again = at.user.post("/token", {**form, "refresh_token": first["refresh_token"]})
            trial.expect(again.status == 400, f"a {name} is good twice: {again.status}")
            last = at.user.post("/token", {**form, "refresh_token": latest["refresh_token"]})
            trial.expect(last.status == 400, f"after a {name} came back, the thief can refresh")
            gone = not at.calls(first["access_token"]) and not at.calls(latest["access_token"])
            trial.expect(gone, f"after a {name} came back, its tokens are good")
        at.works()


DOCUMENT = "https://app.example/client.json"
GOOD = {"client_id": DOCUMENT, "redirect_uris": ["https://app.example/cb"], "client_name": "App"}


LIES: dict[str, Any] = {
    "of another client": {**GOOD, "client_id": "https://evil.example/client.json"},
    "with a slash more": {**GOOD, "client_id": DOCUMENT + "/"},
    "without an id": {"redirect_uris": GOOD["redirect_uris"]},
    "with a secret": {**GOOD, "client_secret": "x"},
    "with a method that needs a secret": {**GOOD, "token_endpoint_auth_method": "client_secret_basic"},
    "with a script for an address": {**GOOD, "redirect_uris": ["javascript:alert(1)"]},
    "with plain http": {**GOOD, "redirect_uris": ["http://app.example/cb"]},
    "with too many addresses": {**GOOD, "redirect_uris": [f"https://app.example/{n}" for n in range(50)]},
    "that is a list": [GOOD],
    "that is no JSON": b"<html>",
    "that is nested deeply": b"[" * 10_000,
    "that is too large": {**GOOD, "x": "x" * 100_000},
}
# The name leads to a public address once, and inside when it is asked again; or to both at once.
INSIDE = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254", "fd00::1", "64:ff9b::a00:1")


async def lies(trial: Trial) -> None:
    async def find(fields: Any) -> Any:
        async def fetch(url: str) -> bytes:
            return fields if isinstance(fields, bytes) else json.dumps(fields).encode()

        return await ClientDocuments(fetch).find_client(DOCUMENT)

    for name, fields in LIES.items():
        trial.expect(await find(fields) is None, f"a document {name} is taken")
    trial.expect(await find(GOOD) is not None, "an honest document is refused")


async def names(trial: Trial) -> None:
    for inside in INSIDE:
        for answers in ([inside], ["203.0.113.9", inside], [inside, "203.0.113.9"]):

            async def resolve(host: str, port: int, answers: list[str] = answers) -> list[str]:
                return answers

            judged = await judge_url_and_addresses(DOCUMENT, Egress(schemes=("https",)), resolver=resolve)
            trial.expect(not judged, f"a name that leads to {answers} is fetched")


async def silence(trial: Trial) -> None:
    async def wait(url: str) -> bytes:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE):
            await ClientDocuments(wait).find_client(DOCUMENT)
    except OAuthError:
        pass
    except TimeoutError:
        trial.expect(False, f"a document that does not come is waited for, {time.monotonic() - began:.0f} s")
        return
    trial.expect(time.monotonic() - began < PATIENCE, "a document that does not come holds the server up")


async def growth(trial: Trial) -> None:
    """Without an end, as it is and compressed. The same client, with the same bounds, as for documents."""
    for name, coding, piece in (
        ("plain", "identity", b" " * 100_000),
        ("compressed", "gzip", zlib.compress(b" " * 50_000_000, 9, 31)),
    ):
        written = 0

        async def answer(exchange: Exchange, coding: str = coding, piece: bytes = piece) -> None:
            nonlocal written
            head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\nconnection: close\r\n\r\n"
            exchange.writer.write(head.encode())
            with suppress(ConnectionError):
                while written < MOST_WRITTEN and not (exchange.hung_up.is_set() or exchange.writer.is_closing()):
                    exchange.writer.write(piece)
                    await exchange.writer.drain()
                    written += len(piece)

        async with web(answer) as there:
            place = urlsplit(there.url).netloc
            egress = Egress(schemes=("http",), ports=None, private=[place], max_bytes=MAX_DOCUMENT_BYTES, redirects=0)
            read = 0
            with suppress(LimitExceeded):
                async with GuardedClient(egress) as http, http.stream("GET", there.url) as response:
                    async for each in response.aiter_raw():
                        read += len(each)
            trial.expect(read <= MAX_DOCUMENT_BYTES, f"{name}: {read:,} bytes were read of a document without an end")


@FAMILY.attack(
    "documents of clients that lie, grow or do not end",
    Control(believe_documents, "of another client is taken", "lies", here=True),
    Control(take_long_documents, "too large is taken", "lies", here=True),
    Control(fetch_from_anywhere, "is fetched", "names", here=True),
    Control(wait_for_documents, "is waited for", "silence", here=True),
    Control(take_long_documents, "^plain: .* bytes were read", "growth", here=True),
    Control(take_long_documents, "^compressed: .* bytes were read", "growth", here=True),
)
def _(trial: Trial) -> None:
    parts = {"lies": lies, "names": names, "silence": silence, "growth": growth}
    for _, part in trial.choose(parts):
        asyncio.run(part(trial))
