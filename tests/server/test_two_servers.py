"""Two servers with one Redis and one secret share nothing; two processes of one server share everything.

Each kind of value that is sealed, stored or shared is made at one process and tried at another. `KINDS` is the table.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from pydantic import BaseModel

import defserve
from defserve import Context, Server
from defserve.auth import JWT, ApiKeys, Auth, DeniedTokens, DPoP, OAuthProxy
from defserve.auth.bearer_tokens import DpopProofRequest
from defserve.auth.issuers import IssuerUnavailable
from defserve.errors import UsageError
from defserve.serve.address import Address
from defserve.server import AccessPolicy, Entry
from defserve.server.sharing import find_process_sharing
from defserve.server.web import make_asgi_app as web_app
from defserve.stores.checkpoints.checkpoint_store import StateTampered
from defserve.stores.checkpoints.checkpoint_tree import TreeKey
from defserve.stores.redis import RedisStore
from defserve.stores.shared.shared_tables import SharedOnceRunner, SharedRates
from defserve.stores.shared.worker_link import SharedStoreLink
from defserve.stores.store import Lease, SharedNonceStore, StoreBusy
from tests.asgi import Peer, living
from tests.auth.browsing import Visit
from tests.auth.issuer import ISSUER, claims, pem, private_key, signed
from tests.auth.proofs import THUMBPRINT, bound_token, proof
from tests.auth.proxied import call, proxy
from tests.auth.vendor import FakeVendor
from tests.raw import STATELESS, raw
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.anyio

SECRET = "one secret for everything in this house"
PEPPER = "one pepper for everything in this house"
TOKEN = bound_token()
TAKES: Any = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {}}
ALICE = TreeKey("notes.edit", "alice")
PACKAGE = Path(defserve.__file__).parent


class Notes(BaseModel):
    text: str = ""


class Process:
    """A process of a server. Its parts are made when a kind of value needs them, as one process would have them."""

    def __init__(self, folder: Path, address: str, name: str, url: str, namespace: str | None = None) -> None:
        self.folder, self.address, self.name, self.url = folder, address, name, url
        self.options: dict[str, Any] = {"namespace": namespace} if namespace else {}
        self.policy = AccessPolicy("opt-in")
        self.stack = AsyncExitStack()
        self._server: Server | None = None
        self._app: Any = None
        self._proxy: OAuthProxy | None = None

    @property
    def server(self) -> Server:
        """One with state and access entries."""
        if self._server is None:
            made = self._server = Server(
                self.name, "1", store=self.address, secret=SECRET, access=self.policy, **self.options
            )
            made.feature_set("notes.edit", "Notes").state(Notes)
        return self._server

    @property
    def plain(self) -> Server:
        """One with tasks and questions, which everybody may call."""
        made = Server(self.name, "1", store=self.address, secret=SECRET, **self.options)

        @made.tool
        async def greet(ctx: Context) -> str:
            done = await ctx.once("effect", lambda: f"an effect at {id(self)}")
            return f"{done}, {await ctx.ask('Your name?', str, key='name')}"

        @made.tool(task="required")
        async def wait() -> str:
            await asyncio.Event().wait()
            return ""

        @made.tool
        def who() -> str:
            return "me"

        return made

    @property
    def link(self) -> SharedStoreLink:
        found = find_process_sharing(self.server.composition)
        assert found is not None
        return found.link

    async def serve(self) -> Any:
        """The server over HTTP, with its link to the other processes."""
        if self._app is None:
            self._app = await self.stack.enter_async_context(living(self.server.asgi()))
            await until(lambda: self.link.is_up)
        return self._app

    async def linked(self) -> SharedStoreLink:
        await self.serve()
        return self.link

    async def trees(self) -> Any:
        state: Any = self.server.mcpl.state
        return await next(iter(state)).trees()

    def given(self, auth: Any) -> Auth:
        """What verifies tokens, when a server of this name has it."""
        found = Server(self.name, "1", auth=auth, **self.options).auth
        assert found is not None
        return found

    def visit(self, vendor: FakeVendor) -> Visit:
        """A browser and a client at the server, where users sign in."""
        auth = proxy(vendor, url=self.url, store=self.address, secret=SECRET)
        server = Server(self.name, auth=auth, **self.options)

        @server.tool
        def who(ctx: Context) -> str:
            return ctx.principal

        host = urlsplit(self.url).netloc
        options: Any = {"allowed_hosts": [host]}
        made = web_app(
            server.composition, server.mcp, server.auth, options, Address.parse("http://127.0.0.1:8000/mcp", "/mcp")
        )
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(made), base_url=f"https://{host}")
        self.stack.push_async_callback(http.aclose)
        return Visit(http, vendor)


Kind = Callable[[Process, Process], Awaitable[bool]]
"""Makes a value at one process. Whether the other one knows it, or accepts it."""
KINDS: dict[str, Kind] = {}


def kind(made: Kind) -> Kind:
    KINDS[made.__name__] = made
    return made


def same_client(visit: Visit, other: Visit) -> Visit:
    """The same client and user at another process."""
    other.client, other.verifier, other.state = visit.client, visit.verifier, visit.state
    return other


# -- signing in ------------------------------------------------------------------------------------------


@kind
async def access_token(one: Process, other: Process) -> bool:
    vendor = FakeVendor()
    tokens = await one.visit(vendor).tokens()
    return (await call(other.visit(vendor).http, tokens["access_token"])).status_code == 200


@kind
async def refresh_token(one: Process, other: Process) -> bool:
    """The client is registered at the other one, too, if it can be."""
    vendor = FakeVendor()
    visit = one.visit(vendor)
    tokens = await visit.tokens()
    return (await same_client(visit, other.visit(vendor)).refresh(tokens["refresh_token"])).status_code == 200


@kind
async def authorization_code(one: Process, other: Process) -> bool:
    vendor = FakeVendor()
    visit = one.visit(vendor)
    code = await visit.code()
    return (await same_client(visit, other.visit(vendor)).exchange(code)).status_code == 200


@kind
async def client_id(one: Process, other: Process) -> bool:
    vendor = FakeVendor()
    visit = one.visit(vendor)
    await visit.register()
    return (await same_client(visit, other.visit(vendor)).authorize()).status_code == 200


@kind
async def consent(one: Process, other: Process) -> bool:
    """The user answers the question of one at the other. Browsers send cookies to their own host only."""
    vendor = FakeVendor()
    visit = one.visit(vendor)
    await visit.register()
    page, there = await visit.authorize(), other.visit(vendor)
    for cookie in visit.http.cookies.jar:
        there.http.cookies.set(cookie.name, cookie.value or "", domain=urlsplit(other.url).hostname or "", path="/")
    return (await there.decide(page)).status_code in (200, 302)


@kind
async def every_purpose_of_a_seal(one: Process, other: Process) -> bool:
    """What the source seals, for whatever purpose: a new one is tried without being named here."""
    vendor = FakeVendor()
    seals: list[Any] = []
    for process in (one, other):
        auth = proxy(vendor, url=process.url, store=process.address, secret=SECRET)
        process.given(auth)
        seals.append(auth._tokens._seals)
    texts = (path.read_text(encoding="utf-8") for path in (PACKAGE / "auth").rglob("*.py"))
    purposes = {found for text in texts for found in re.findall(r"\.seal\(\s*\"([^\"]+)\"", text)}
    assert len(purposes) > 6
    opened = {seals[1].open(purpose, seals[0].seal(purpose, "value")) for purpose in purposes}
    marks = {seals[1].is_valid_mac(purpose, "text", seals[0].compute_mac(purpose, "text")) for purpose in purposes}
    assert len(opened) == len(marks) == 1
    return opened == {"value"} and marks == {True}


@kind
async def grant(one: Process, other: Process) -> bool:
    """The record itself: its id is known at the other one."""
    vendor, found = FakeVendor(), list[Any]()
    tokens = await one.visit(vendor).tokens()
    for process in (one, other):
        auth = proxy(vendor, url=process.url, store=process.address, secret=SECRET)
        process.given(auth)
        found.append(auth._tokens)
    id = found[0]._seals.open("access", tokens["access_token"])[0]
    return await found[1]._grants.find_grant(id) is not None


# -- other credentials -----------------------------------------------------------------------------------


@kind
async def api_key(one: Process, other: Process) -> bool:
    keys = [ApiKeys(process.address, pepper=PEPPER) for process in (one, other)]
    auths = [process.given(each) for process, each in zip((one, other), keys, strict=True)]
    token = (await keys[0].create("alice")).token
    assert await auths[0].verifier.verify(token) is not None
    return await auths[1].verifier.verify(token) is not None


@kind
async def api_key_in_a_file(one: Process, other: Process) -> bool:
    path = one.folder / "keys.json"
    keys = [ApiKeys(path, pepper=PEPPER) for _ in range(2)]
    auths = [process.given(each) for process, each in zip((one, other), keys, strict=True)]
    token = (await keys[0].create("alice")).token
    assert await auths[0].verifier.verify(token) is not None
    try:
        return await auths[1].verifier.verify(token) is not None
    except IssuerUnavailable as error:
        assert "has the keys of the server" in str(error)
        return False


@kind
async def revoked_key(one: Process, other: Process) -> bool:
    """What one announces."""
    keys = [ApiKeys(process.address, pepper=PEPPER) for process in (one, other)]
    for process, each in zip((one, other), keys, strict=True):
        process.given(each)
    made = await keys[0].create("alice")
    mine = await keys[1].create("bob")
    follow: Any = keys[1].revocations
    followed = follow()
    assert await anext(followed) == ""
    await keys[0].revoke(made.key.id)
    await keys[1].revoke(mine.key.id)  # comes after it, and ends the waiting
    first = await anext(followed)
    await followed.aclose()
    return first == f"key:{made.key.id}"


@kind
async def denied_token(one: Process, other: Process) -> bool:
    lists = [DeniedTokens(process.address) for process in (one, other)]
    key = pem(private_key())
    auths = [
        process.given(JWT(key=key, audience=process.url, issuer=ISSUER, denied=each))
        for process, each in zip((one, other), lists, strict=True)
    ]
    token = signed(claims(jti="one", aud=[one.url, other.url]))
    assert await auths[1].verifier.verify(token) is not None
    await lists[0].deny("one", until=2e9)
    return await auths[1].verifier.verify(token) is None


def proofs_of(one: Process, other: Process) -> list[DPoP]:
    made = [DPoP(process.address, nonce=True, secret=SECRET) for process in (one, other)]
    key = pem(private_key())
    for process, dpop in zip((one, other), made, strict=True):
        process.given(Auth(JWT(key=key, audience=process.url, issuer=ISSUER), dpop=dpop))
    return made


@kind
async def dpop_nonce(one: Process, other: Process) -> bool:
    mine, others = proofs_of(one, other)
    shown = DpopProofRequest("POST", other.url, [proof(TOKEN, other.url, nonce=mine.new_nonce()).encode()])
    return await others.check(shown, TOKEN, THUMBPRINT) == ""


@kind
async def used_dpop_proof(one: Process, other: Process) -> bool:
    mine, others = proofs_of(one, other)
    spent = [await each._spent.spend("dpop a proof", ttl=60) for each in (mine, others)]
    assert spent[0]
    return not spent[1]


# -- questions and tasks ---------------------------------------------------------------------------------


@kind
async def request_state(one: Process, other: Process) -> bool:
    async with raw(one.plain, STATELESS, TAKES) as here, raw(other.plain, STATELESS, TAKES) as there:
        asked = (await here.ask("tools/call", {"name": "greet", "arguments": {}}))["result"]
        answers = {"name": {"action": "accept", "content": {"value": "Ann"}}}
        given = {"name": "greet", "arguments": {}, "inputResponses": answers, "requestState": asked["requestState"]}
        reply = await there.ask("tools/call", given)
        return "result" in reply and f"an effect at {id(one)}" in str(reply["result"])


@kind
async def task(one: Process, other: Process) -> bool:
    async with raw(one.plain, STATELESS, TAKES) as here, raw(other.plain, STATELESS, TAKES) as there:
        id = (await here.call("wait"))["taskId"]
        assert "result" in await here.ask("tasks/get", {"taskId": id})
        return "result" in await there.ask("tasks/get", {"taskId": id})


# -- state -----------------------------------------------------------------------------------------------


@kind
async def state(one: Process, other: Process) -> bool:
    trees, others = await one.trees(), await other.trees()
    await trees.commit(await trees.load_checkpoint(ALICE), {"text": "mine"})
    return (await others.load_checkpoint(ALICE)).content() is not None


@kind
async def checkpoint_id(one: Process, other: Process) -> bool:
    """A host brings a content back with its id. The id alone has to show whose it is."""
    trees, others = await one.trees(), await other.trees()
    id = (await trees.commit(await trees.load_checkpoint(ALICE), {"text": "mine"})).checkpoint.id
    try:
        return (await others.adopt_content(ALICE, {"text": "mine"}, checkpoint=id)).verified
    except StateTampered:
        return False


@kind
async def stored_checkpoint_secret(one: Process, other: Process) -> bool:
    """Without a secret of the server, one is made in the store."""
    from defserve.stores.checkpoints.checkpoint_store import load_checkpoint_secret

    found = [await load_checkpoint_secret(process.plain.store, None) for process in (one, other)]
    return found[0] == found[1]


# -- what processes share --------------------------------------------------------------------------------


@kind
async def session_id(one: Process, other: Process) -> bool:
    living_apps = [(each, living(each.plain.asgi())) for each in (one, other)]
    here, there = [Peer(await each.stack.enter_async_context(app)) for each, app in living_apps]
    await here.open()
    assert (await here.begin_call("who").ended()).status == 200
    there.session = here.session
    return (await there.begin_call("who").ended()).status == 200


@kind
async def access_entry(one: Process, other: Process) -> bool:
    await one.serve()
    await other.serve()
    entry = Entry("tool_grant", "alice", "greet")
    await asyncio.to_thread(one.policy.grant, entry)
    for load in other.link.caught_up:
        await load()
    return other.policy.entry("alice", "greet") is not None


@kind
async def news(one: Process, other: Process) -> bool:
    links, heard = [await each.linked() for each in (one, other)], list[str]()
    links[1].add_receiver("said", lambda fields, id: heard.append(fields["d"].decode()))
    links[0].publish_update("t", "said", "d", "first")
    await until(lambda: links[0].is_written)
    links[1].publish_update("t", "said", "d", "last")
    await until(lambda: "last" in heard)
    return "first" in heard


@kind
async def living_worker(one: Process, other: Process) -> bool:
    """Who lives gets mail, and keeps its sessions."""
    links = [await each.linked() for each in (one, other)]
    return bool(await links[1]._redis.exists(f"{links[1]._prefix}lease:{links[0].worker}"))


@kind
async def nonce(one: Process, other: Process) -> bool:
    spent = [await SharedNonceStore(process.plain.store).spend("a nonce", ttl=60) for process in (one, other)]
    assert spent[0]
    return not spent[1]


@kind
async def lease(one: Process, other: Process) -> bool:
    mine, others = (Lease(process.plain.store, "a lease") for process in (one, other))
    await mine.acquire(5)
    try:
        await others.acquire(0.1)
    except StoreBusy:
        return True
    else:
        await others.release()
        return False
    finally:
        await mine.release()


@kind
async def rate(one: Process, other: Process) -> bool:
    rates = [SharedRates(await each.linked()) for each in (one, other)]
    taken = [await each.take_tokens([("alice", 0.001, 1)]) for each in rates]
    assert taken[0][0] == 0
    return taken[1][0] != 0


@kind
async def work_that_is_done_once(one: Process, other: Process) -> bool:
    async def outcome(text: str) -> tuple[str, bool]:
        return text, True

    links = [await each.linked() for each in (one, other)]
    await SharedOnceRunner(links[0]).run_once("key", 60, lambda: outcome("mine"))
    await until(lambda: links[0].is_written)
    return await SharedOnceRunner(links[1]).run_once("key", 60, lambda: outcome("other")) == "mine"


@kind
async def audit_log(one: Process, other: Process) -> bool:
    trails: list[Any] = []
    for process in (one, other):
        server = Server(process.name, "1", audit=process.address, **process.options)
        trails.append(server.mgp.audit.sinks[0])
    try:
        trails[0].append({"type": "mine"}, durable=True)
        return trails[1].last_seq == 1
    finally:
        for trail in trails:
            trail.close()


# -- the matrix ------------------------------------------------------------------------------------------

NOTES = {"name": "notes", "url": "https://tools.example.com/mcp"}
PAYROLL = {"name": "payroll", "url": "https://payroll.example.com/mcp"}
STAGING, PRODUCTION = {**NOTES, "namespace": "staging"}, {**NOTES, "namespace": "production"}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always").start()
    yield server
    server.remove()


@pytest.fixture(autouse=True)
def audit_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFSERVE_AUDIT_KEY", "one key for all the logs in this house")
    monkeypatch.setenv("DEFSERVE_SECRET", SECRET)


@pytest.fixture(autouse=True)
async def closed_stores(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Every connection to Redis that a test opens is closed with it."""
    opened, init = list[RedisStore](), RedisStore.__init__

    def note(store: RedisStore, *given: Any, **more: Any) -> None:
        opened.append(store)
        init(store, *given, **more)

    monkeypatch.setattr(RedisStore, "__init__", note)
    yield
    for store in opened:
        await store.close()


@asynccontextmanager
async def processes(redis: RedisServer, folder: Path, *about: dict[str, Any]) -> AsyncIterator[list[Process]]:
    address = f"{redis.address}?prefix={folder.name}:"
    made = [Process(folder, address, **each) for each in about]
    try:
        yield made
    finally:
        for each in made:
            await each.stack.aclose()


@pytest.mark.parametrize("name", KINDS)
async def test_another_server_in_the_same_redis_with_the_same_secret_refuses_it(
    redis: RedisServer, tmp_path: Path, name: str
):
    async with processes(redis, tmp_path, NOTES, PAYROLL) as (one, other):
        assert not await KINDS[name](one, other)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
async def test_another_deployment_of_the_same_name_in_another_namespace_refuses_it(
    redis: RedisServer, tmp_path: Path, name: str
):
    async with processes(redis, tmp_path, STAGING, PRODUCTION) as (one, other):
        assert not await KINDS[name](one, other)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("about", [NOTES, pytest.param(PRODUCTION, marks=pytest.mark.slow)], ids=["name", "namespace"])
async def test_another_process_of_the_same_server_accepts_it(
    redis: RedisServer, tmp_path: Path, name: str, about: dict[str, Any]
):
    async with processes(redis, tmp_path, about, about) as (one, other):
        assert await KINDS[name](one, other)


@pytest.mark.parametrize("made", [access_token, refresh_token, authorization_code])
async def test_servers_that_were_given_one_namespace_still_refuse_each_other_s_sign_ins(
    redis: RedisServer, tmp_path: Path, made: Kind
):
    """Their seals are the same; a grant says for which URL it was given, and that is compared."""
    about = [{**NOTES, "namespace": "house"}, {**PAYROLL, "namespace": "house"}]
    async with processes(redis, tmp_path, *about) as (one, other):
        assert not await made(one, other)


async def test_one_object_is_not_given_to_two_servers(tmp_path: Path):
    """Neither keys nor proofs nor sign-ins can be two servers' at once; whoever wants that says so."""
    address, key = f"sqlite:///{tmp_path / 'shared.db'}", pem(private_key())
    parts: list[Any] = [
        ApiKeys(address, pepper=PEPPER),
        ApiKeys(tmp_path / "keys.json", pepper=PEPPER),
        Auth(JWT(key=key, audience="notes", issuer=ISSUER), resource="https://a.example/mcp", dpop=DPoP()),
        JWT(key=key, audience="notes", issuer=ISSUER, denied=DeniedTokens(address)),
        proxy(FakeVendor(), store=address, secret=SECRET),
    ]
    for part in parts:
        Server("one", auth=part, namespace="one")
        Server("one", auth=part, namespace="one")
        with pytest.raises(UsageError, match="belongs to the server namespace=one, and is given to namespace=two too"):
            Server("two", auth=part, namespace="two")


async def test_a_server_says_at_the_start_that_its_name_alone_stands_for_it_in_redis(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with processes(redis, tmp_path, NOTES, PRODUCTION) as (named, spaced):
        await spaced.serve()
        assert "namespace" not in caplog.text
        await named.serve()
        assert "under its name, notes" in caplog.text and "DEFSERVE_NAMESPACE" in caplog.text
