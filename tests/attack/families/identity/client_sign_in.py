"""Servers and issuers that want a token, a code or a request of ours that is not meant for them."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from defserve.client import RemoteServer, SignIn, SignInError, connect_url
from defserve.client.link import get_sign_in_path
from defserve.client.signin.browser import BrowserRedirect
from defserve.client.signin.credentials import FileCredentialStore, MemoryCredentialStore
from defserve.client.signin.fetching import Fetcher, NetworkReach
from defserve.errors import PeerError
from tests.attack.controls.identity import (
    follow_redirects,
    follow_redirects_of_sockets,
    go_anywhere,
    keep_sign_ins_by_host,
    quote_anything,
    read_documents_of_any_size,
    take_any_answer,
    take_any_file_for_a_sign_in,
    take_any_issuer,
    take_any_token,
)
from tests.attack.trial import Control, Family, Trial
from tests.client.signin.company import Company, company
from tests.client.web import Exchange, Web, web

FAMILY = Family("client sign-in")
Change = Callable[[Company, Company], Any]


async def signed_in(server: Company, person: Company, store: Any = None) -> str:
    """What comes of a call: `done`, or the error."""
    auth = SignIn(redirect=person, store=store or MemoryCredentialStore(), client_id="me", client_secret="the-secret")
    try:
        async with RemoteServer(server.url, auth=auth).connect() as client:
            await client.call("add")
        return "done"
    except PeerError as error:
        return error.message


def told(one: Company) -> str:
    """Everything that somebody was sent."""
    return " ".join(f"{each.path} {each.headers} {each.body!r}" for each in one.web.seen)


# What an evil issuer, or a server that is in league with it, says to get a code or token of the honest one.
MIXED_UP: dict[str, Change] = {
    "its metadata names the honest issuer": lambda evil, honest: evil.issuer.update(issuer=honest.origin),
    "its metadata sends people to the honest issuer and answers come without a name": lambda evil, honest: (
        evil.issuer.update(
            authorization_endpoint=honest.issuer["authorization_endpoint"],
            authorization_response_iss_parameter_supported=True,
        )
    ),
    "the answer names the honest issuer": lambda evil, honest: evil.answer_fields.update(iss=honest.origin),
    "the answer names itself with a slash more": lambda evil, honest: evil.answer_fields.update(iss=evil.origin + "/"),
    "the answer names itself in capitals": lambda evil, honest: evil.answer_fields.update(iss=evil.origin.upper()),
    "the server says that it is the honest one": lambda evil, honest: evil.resource.update(resource=honest.url),
    "the server is above the honest one by name": lambda evil, honest: evil.resource.update(
        resource=honest.url + "/../mcp"
    ),
}


@FAMILY.attack("mixed-up issuers", Control(take_any_answer, "was sent a code", here=True))
def _(trial: Trial) -> None:
    async def run() -> None:
        for name, change in MIXED_UP.items():
            async with company() as honest, company() as evil:
                store = MemoryCredentialStore()
                trial.expect(await signed_in(honest, honest, store) == "done", "the honest server: no sign-in")
                change(evil, honest)
                said = await signed_in(evil, evil, store)
                trial.expect(not evil.forms, f"{name}: the evil issuer was sent a code or a secret ({said})")
                trial.expect("access-1" not in told(evil), f"{name}: the evil server has the honest one's token")

    asyncio.run(run())


def _change_end(state: str) -> str:
    return state[:-1] + ("B" if state.endswith("A") else "A")


INJECTED: dict[str, Callable[[dict[str, str]], list[tuple[str, str]]]] = {
    "no state": lambda asked: [("code", "code-0")],
    "an empty state": lambda asked: [("code", "code-0"), ("state", "")],
    "another state": lambda asked: [("code", "code-0"), ("state", _change_end(asked["state"]))],
    "a longer state": lambda asked: [("code", "code-0"), ("state", asked["state"] + "A")],
    "two states": lambda asked: [("code", "code-0"), ("state", asked["state"]), ("state", "x")],
    "two codes": lambda asked: [("code", "code-0"), ("code", "code-1"), ("state", asked["state"])],
    "two issuers": lambda asked: [("code", "code-0"), ("state", asked["state"]), ("iss", "a"), ("iss", "b")],
    "many fields": lambda asked: [("code", "code-0"), ("state", asked["state"]), *[("x", "y")] * 5_000],
    "a state that is not ASCII": lambda asked: [("code", "code-0"), ("state", "é")],
}


@FAMILY.attack("codes that belong to another sign-in", Control(take_any_answer, ": taken", here=True))
def _(trial: Trial) -> None:
    async def run() -> None:
        for name, answer in INJECTED.items():
            async with company() as there:
                say_yes = there.say_yes

                def inject(url: str, answer: Any = answer, there: Company = there, say_yes: Any = say_yes) -> str:
                    location = say_yes(url)
                    return f"{location.partition('?')[0]}?{urlencode(answer(there.visits[-1]))}"

                there.say_yes = inject
                said = await signed_in(there, there)
                trial.expect(said != "done" and not there.forms, f"{name}: taken ({said})")
        async with company() as there:
            # With the right state, but the code of a sign-in that the attacker began.
            theirs = {"state": "s", "redirect_uri": "http://127.0.0.1:1/callback", "code_challenge": "theirs"}
            there.say_yes(f"http://x/?{urlencode(theirs)}")
            there.answer_fields["code"] = "code-0"
            trial.expect(await signed_in(there, there) != "done", "the attacker's code became our token")

    asyncio.run(run())


@FAMILY.attack("redirects to somebody else", Control(follow_redirects, "the evil server was sent", here=True))
def _(trial: Trial) -> None:
    async def run() -> None:
        for path in (
            "/token",
            "/register",
            "/.well-known/oauth-authorization-server",
            "/.well-known/oauth-protected-resource/mcp",
            "/mcp",
        ):
            for status in (301, 302, 303, 307, 308):
                async with company() as there, company() as evil:
                    store = MemoryCredentialStore()
                    if path == "/mcp":
                        trial.expect(await signed_in(there, there, store) == "done", "no sign-in")
                    handle = there.handle

                    async def elsewhere(
                        exchange: Exchange,
                        path: str = path,
                        status: int = status,
                        evil: Company = evil,
                        handle: Any = handle,
                    ) -> None:
                        if urlsplit(exchange.path).path == path:
                            await exchange.respond(status, b"", location=evil.origin + path)
                        else:
                            await handle(exchange)

                    there.handle = elsewhere
                    said = await signed_in(there, there, store)
                    is_unused = path == "/register"  # the client of this attack is registered already
                    trial.expect(said != "done" or is_unused, f"{path} {status}: {said}")
                    trial.expect(not evil.web.seen, f"{path} {status}: the evil server was sent {told(evil)[:200]}")

    asyncio.run(run())


@FAMILY.attack(
    "tokens of one server for another",
    Control(take_any_file_for_a_sign_in, "^a renamed file gave the token", here=True),
    Control(keep_sign_ins_by_host, "^files: .* sent at once", here=True),
    Control(keep_sign_ins_by_host, "^memory: .* sent at once", "memory", here=True),
)
def _(trial: Trial) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with company() as honest, company() as evil:
                store = FileCredentialStore(Path(folder, "kept"), None)
                trial.expect(await signed_in(honest, honest, store) == "done", "no sign-in")
                # Its file lies where the evil server's should.
                kept = get_sign_in_path(honest.url, Path(folder, "kept"))
                kept.rename(get_sign_in_path(evil.url, Path(folder, "kept")))
                evil.resource.update(authorization_servers=[honest.origin])
                await signed_in(evil, honest, store)
                trial.expect("access-1" not in told(evil), "a renamed file gave the token to another server")
                trial.expect("refresh-1" not in told(evil), "a renamed file gave the refresh token to another server")
            stores: dict[str, Callable[[str], Any]] = {
                "files": lambda name: FileCredentialStore(Path(folder, name), None),
                "memory": lambda name: MemoryCredentialStore(),
            }
            for place, make in trial.choose(stores):
                for number, path in enumerate(("/mcp", "/mcp/", "/other", "/mcp2", "/mcp/deep", "/%6dcp")):
                    async with company() as honest:
                        store = make(f"kept-{number}")
                        trial.expect(await signed_in(honest, honest, store) == "done", "no sign-in")
                        first = await _first_request(honest, store, "/mcp")
                        trial.expect("access-1" in first, f"{place}: the token is not even sent to its own server")
                        first = await _first_request(honest, store, path + "?tenant=other")
                        trial.expect(
                            first and "access-1" not in first,
                            f"{place}: {path}: the token of another address was sent at once",
                        )

    asyncio.run(run())


async def _first_request(there: Company, store: Any, path: str) -> str:
    """What is sent to a path of somebody, before it has answered anything."""
    before = len(there.web.seen)
    auth = SignIn(redirect=there, store=store, client_id="me", client_secret="the-secret")
    try:
        async with RemoteServer(there.origin + path, auth=auth).connect():
            pass
    except PeerError:
        pass
    return " ".join(str(each.headers) for each in there.web.seen[before : before + 1])


# Ways to write this machine, or a place where only this machine can go.
INSIDE = (
    "http://127.0.0.1:{port}/", "http://localhost:{port}/", "https://127.0.0.1:{port}/", "https://localhost:{port}/",
    "https://127.1:{port}/", "https://2130706433:{port}/", "https://0x7f000001:{port}/", "https://0177.0.0.1:{port}/",
    "https://[::1]:{port}/", "https://[::ffff:127.0.0.1]:{port}/", "https://[::ffff:7f00:1]:{port}/",
    "https://0.0.0.0:{port}/", "https://[::]:{port}/", "https://LOCALHOST:{port}/", "https://localhost.:{port}/",
    "https://user@127.0.0.1:{port}/", "https://127.0.0.1:{port}/#x", "https://127。0。0。1:{port}/",
    "https://127.0.0.1\\@issuer.example:{port}/", "//127.0.0.1:{port}/", "file:///etc/passwd", "gopher://127.0.0.1:{port}/",
    "https://169.254.169.254/latest/meta-data/", "https://[fe80::1]/", "https://10.0.0.1/", "https://192.168.0.1/",
    "https://[fd00::1]/", "https://[::ffff:10.0.0.1]/", "https://100.64.0.1/", "https://[64:ff9b::7f00:1]/",
    "data:application/json,{{}}", "javascript:alert(1)", "", "https://", "https://[", "https://127.0.0.1:99999/",
)  # fmt: skip


INSIDE_USED = Control(go_anywhere, ": used$", "http://127.0.0.1:*", here=True)


@FAMILY.attack("addresses inside, named by a server on the internet", INSIDE_USED)
def _(trial: Trial) -> None:
    async def run() -> None:
        async def canary(exchange: Exchange) -> None:
            await exchange.respond(200, b"{}")

        async with web(canary) as inside:
            port, fetcher = urlsplit(inside.url).port, Fetcher(NetworkReach.INTERNET)
            for written, _ in trial.choose(dict.fromkeys(INSIDE)):
                url = written.format(port=port)
                for use in (
                    fetcher.get(url, "the page"),
                    fetcher.post(url, "the page", {"code": "c0de"}),
                    fetcher.post_json(url, "the page", {}),
                    fetcher.check_url(url, "the page"),
                ):
                    trial.expect(await _refused(use), f"{url}: used")
            trial.expect(not inside.seen, f"somebody inside was asked: {_paths(inside)}")

    asyncio.run(run())


async def _refused(use: Any) -> bool:
    try:
        await use
    except SignInError:
        return True
    return False


def _paths(there: Web) -> str:
    return ", ".join(each.path for each in there.seen)


DOCUMENTS: dict[str, bytes] = {
    "long": b"x" * 2_000_000,
    "deep": b"[" * 50_000,
    "a list": b"[]",
    "null": b"null",
    "a text": b'"text"',
    "a number for a name": b'{"issuer": 7}',
    "no UTF-8": b"\xff" * 1_000,
    "not closed": b"{" * 9_999,
    "lists for names": json.dumps({"issuer": ["a"] * 1_000, "token_endpoint": {}}).encode(),
    "a long token": json.dumps({"access_token": "a" * 40_000, "token_type": "Bearer"}).encode(),
    "a header in a token": json.dumps({"access_token": "a\r\nx-evil: y", "token_type": "Bearer"}).encode(),
    "an endless life": json.dumps({"access_token": "a", "token_type": "Bearer", "expires_in": 1e400}).encode(),
    "a very long life": b'{"access_token": "a", "token_type": "Bearer", "expires_in": 1' + b"0" * 400 + b"}",
    "a type that is a list": json.dumps(
        {"access_token": "a", "token_type": ["Bearer"], "expires_in": "x" * 100}
    ).encode(),
    "a long type": json.dumps({"access_token": "a", "token_type": "x\x1b[2J" * 10_000}).encode(),
    "a long error": json.dumps({"error": "x" * 100_000, "error_description": "\x1b[2J" * 10_000}).encode(),
    "somebody else": json.dumps({"issuer": "\x1b[2J" * 10_000, "resource": "\x1b[2J" * 10_000}).encode(),
}
ENDLESS = "without an end"
# More than the system keeps between the two: what was written beyond that was read.
MOST_READ, PIECE = 48_000_000, b" " * 100_000


@FAMILY.attack(
    "answers of an issuer that are too much",
    Control(quote_anything, "^/token a long error: said", "/token a long error", here=True),
    Control(quote_anything, "somebody else: said", "*metadata somebody else", here=True),
    Control(take_any_token, "a long token: it was sent", "/token a long token", here=True),
    Control(take_any_token, "a header in a token: it was sent", "/token a header in a token", here=True),
    Control(read_documents_of_any_size, "bytes were read", f"/token {ENDLESS}", here=True),
)
def _(trial: Trial) -> None:
    """What is said of them is short and plain, what they give is not sent on, and they are not read to the end."""
    paths = {
        "/token": "/token",
        "the issuer's metadata": "/.well-known/oauth-authorization-server",
        "the server's metadata": "/.well-known/oauth-protected-resource/mcp",
    }
    cases = {
        f"{what} {name}": (path, document)
        for what, path in paths.items()
        for name, document in {**DOCUMENTS, ENDLESS: None}.items()
    }

    async def run() -> None:
        for name, (path, document) in trial.choose(cases):
            for status in (200, 400) if document is not None else (200,):
                async with company() as there:
                    much = _Much(there, path, document, status)
                    there.handle = much.handle
                    said = await signed_in(there, there)
                    problem, _, fix = said.partition("\n  fix: ")
                    is_plain = (problem + fix).isprintable() and len(said) < 2_000 and "defserve" not in problem
                    trial.expect(is_plain, f"{name}: said {status}: {said[:300]!r}")
                    trial.expect(much.asked, f"{name}: nobody has asked for it")
                    sent = any("x-evil" in each.headers or len(str(each.headers)) > 35_000 for each in there.web.seen)
                    trial.expect(not sent, f"{name}: it was sent on")
                    trial.expect(much.written < MOST_READ, f"{name}: {much.written:,} bytes were read")

    asyncio.run(run())


class _Much:
    """Answers with a document at one path; without an end if there is none. Everything else is as it was."""

    def __init__(self, there: Company, path: str, document: bytes | None, status: int) -> None:
        self._handle, self._path, self._document, self._status = there.handle, path, document, status
        self.asked = self.written = 0

    async def handle(self, exchange: Exchange) -> None:
        if urlsplit(exchange.path).path != self._path:
            await self._handle(exchange)
        elif self._document is not None:
            self.asked += 1
            await exchange.respond(self._status, self._document, content_type="application/json")
        else:
            self.asked += 1
            exchange.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n{")
            with suppress(ConnectionError):
                while self.written < MOST_READ and not exchange.hung_up.is_set():
                    exchange.writer.write(PIECE)
                    await exchange.writer.drain()
                    self.written += len(PIECE)
                    await asyncio.sleep(0)  # the reader is in this loop


# What a page of another site, or another program of this machine, sends to the address we wait at.
KNOCKS: dict[str, Callable[[str, str], bytes]] = {
    "a code without a state": lambda path, host: _get(f"{path}?code=evil", host),
    "a code with another state": lambda path, host: _get(f"{path}?code=evil&state=guess", host),
    "an error without a state": lambda path, host: _get(f"{path}?error=access_denied", host),
    "an error with an empty state": lambda path, host: _get(f"{path}?error=access_denied&state=", host),
    "another path": lambda path, host: _get("/callback?code=evil&state=guess", host),
    "by another name (rebinding)": lambda path, host: _get(f"{path}?code=evil&state=guess", "evil.example"),
    "a form": lambda path, host: f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n\r\ncode=evil".encode(),
    "a script in the address": lambda path, host: _get(f"{path}?state=%3Cscript%3Ealert(1)%3C/script%3E", host),
    "a head without an end": lambda path, host: b"GET " + b"x" * 100_000,
    "bytes": lambda path, host: bytes(range(256)) * 10 + b"\r\n\r\n",
    "nothing": lambda path, host: b"",
}


def _get(target: str, host: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@FAMILY.attack(
    "knocks at the address that we wait at", Control(take_any_answer, "a code without a state: taken", here=True)
)
def _(trial: Trial) -> None:
    """Login CSRF: none of them is taken, ends the wait, or is repeated on the page; the honest answer still is."""

    async def knock(uri: str, sent: bytes) -> bytes:
        parts = urlsplit(uri)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            writer.write(sent)
            await writer.drain()
            if not sent.endswith(b"\r\n\r\n"):
                writer.write_eof()
            return await reader.read()
        except OSError:
            return b""
        finally:
            writer.close()

    async def run() -> None:
        async with company() as there:
            tasks: list[asyncio.Future[None]] = []

            async def visited(url: str) -> None:
                uri = dict(parse_qsl(urlsplit(url).query))["redirect_uri"]
                parts = urlsplit(uri)
                for name, sent in KNOCKS.items():
                    answer = await knock(uri, sent(parts.path, parts.netloc))
                    trial.expect(b" 200 " not in answer[:20], f"{name}: taken")
                    trial.expect(b"<script" not in answer and b"evil" not in answer, f"{name}: repeated on the page")
                honest = urlsplit(there.say_yes(url))
                page = await knock(uri, _get(f"{honest.path}?{honest.query}", parts.netloc))
                trial.expect(b" 200 " in page[:20], "the honest answer is not taken")
                policy = page.partition(b"\r\n\r\n")[0].lower()
                trial.expect(b"frame-ancestors 'none'" in policy and b"no-referrer" in policy, "the page can be framed")

            def opens(url: str) -> bool:
                tasks.append(asyncio.run_coroutine_threadsafe(visited(url), loop))  # type: ignore[arg-type]
                return True

            loop = asyncio.get_running_loop()
            auth = SignIn(redirect=BrowserRedirect(opens=opens, seconds=30), store=MemoryCredentialStore())
            async with RemoteServer(there.url, auth=auth).connect() as client:
                trial.expect(await client.call("add"), "no sign-in")
            trial.expect(not any(form.get("code") == "evil" for form in there.forms), "the evil code was exchanged")

    asyncio.run(run())


# What an issuer, or whoever can change its metadata on the way, says to make a sign-in weaker.
WEAKENED: dict[str, Callable[[Company], Any]] = {
    "no PKCE": lambda there: there.issuer.pop("code_challenge_methods_supported"),
    "plain PKCE": lambda there: there.issuer.update(code_challenge_methods_supported=["plain"]),
    "PKCE by another name": lambda there: there.issuer.update(code_challenge_methods_supported=["s256", "S256 "]),
    "a challenge that it fixes itself": lambda there: there.issuer.update(
        authorization_endpoint=f"{there.origin}/authorize?code_challenge=theirs&code_challenge_method=plain"
    ),
    "a state that it fixes itself": lambda there: there.issuer.update(
        authorization_endpoint=f"{there.origin}/authorize?state=theirs"
    ),
    "a page that is a script": lambda there: there.issuer.update(authorization_endpoint="javascript:alert(1)"),
    "a page in a file": lambda there: there.issuer.update(authorization_endpoint="file:///etc/passwd"),
    "a page without https": lambda there: there.issuer.update(authorization_endpoint="http://192.0.2.1/authorize"),
    "tokens of another kind": lambda there: there.token_fields.update(token_type="mac"),
    "a bound token that nobody asked for": lambda there: there.token_fields.update(token_type="DPoP"),
}


@FAMILY.attack("issuers that make a sign-in weaker", Control(take_any_issuer, "no PKCE: signed in", here=True))
def _(trial: Trial) -> None:
    async def run() -> None:
        for name, change in WEAKENED.items():
            async with company() as there:
                change(there)
                said = await signed_in(there, there)
                trial.expect(said != "done", f"{name}: signed in")
                is_late = name.startswith(("tokens", "a bound"))
                trial.expect(is_late or (not there.visits and not there.forms), f"{name}: the person was sent there")

    asyncio.run(run())


FOLLOWED = Control(follow_redirects_of_sockets, "somebody else was asked", here=True)


@FAMILY.attack("WebSockets that lead elsewhere", FOLLOWED)
def _(trial: Trial) -> None:
    """A token, and whatever else is in headers, goes to the address that was given, and to no other."""

    async def run() -> None:
        async with company() as evil:
            for status in (300, 301, 302, 303, 307, 308):
                for to in (
                    evil.origin.replace("http", "ws") + "/mcp",
                    evil.url,
                    "//" + urlsplit(evil.url).netloc,
                    "/b",
                ):
                    seen: list[str] = []

                    async def elsewhere(
                        exchange: Exchange, status: int = status, to: str = to, seen: Any = seen
                    ) -> None:
                        seen.append(exchange.path)
                        await exchange.respond(status, b"", location=to)

                    async with web(elsewhere) as there:
                        url = there.url.replace("http", "ws")
                        link = connect_url(url, token="s3cret", headers={"x-api-key": "s3cret"})
                        trial.expect(await _fails(link), f"{status} to {to}: a connection")
                        trial.expect(len(seen) == 1, f"{status} to {to}: followed: {seen}")
                    is_secret = "s3cret" not in told(evil) and not evil.web.seen
                    trial.expect(is_secret, f"somebody else was asked: {told(evil)[:200]}")

    asyncio.run(run())


async def _fails(opening: Any) -> bool:
    try:
        await (await opening).aclose()
    except PeerError:
        return True
    return False
