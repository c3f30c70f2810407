"""What servers and clients do about identity without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from typing import Any

from tests.attack.controls.http import APP, let_everybody_in, wait_for_heads
from tests.attack.controls.patching import Patch

AUTHORITY = "defserve.auth.authority"
LIVE = "defserve.auth.live_credentials:LiveCredentials"

__all__ = ["let_everybody_in"]

# -- whose yes counts ------------------------------------------------------------------------------------


def believe_strangers(patch: Patch) -> None:
    """The yes of somebody whom nobody vouches for counts."""
    patch.set(f"{AUTHORITY}:is_stranger", lambda caller: False)


def believe_nobody(patch: Patch) -> None:
    patch.set(f"{AUTHORITY}:is_stranger", lambda caller: True)


def take_any_address(patch: Patch) -> None:
    """A forwarded address is whatever a header says."""
    patch.set(f"{AUTHORITY}:normalize_ip_address", lambda text: text.strip() or None)
    last = "defserve.serve.sockets:ForwardedAddressMiddleware.caller"
    patch.set(last, lambda self, hops: hops[-1].strip() if hops else None)


def take_everybody_for_an_admin(patch: Patch) -> None:
    patch.set("defserve.protocols.mgp.access:AccessPolicy.is_admin", lambda self, principal: True)


def stop_for_everybody(patch: Patch) -> None:
    patch.set("defserve.protocols.mgp.lifecycle:LifecycleSection._may_stop", lambda self, caller: True)


def enable_for_everybody(patch: Patch) -> None:
    """A host that nobody knows may enable what is off."""

    def make(update: Any) -> Any:
        return lambda self, params, **named: update(self, params, **{**named, "may_enable": True})

    patch.wrap("defserve.protocols.mcpl.policies:FeaturePolicy.update", make)


def take_any_right_for_a_yes(patch: Patch) -> None:
    """Who may call a dangerous tool may do so unasked."""
    patch.set("defserve.protocols.mgp.permissions:find_right_naming_tool", lambda mgp, caller, tool: "tool:invoke:*")


def believe_strangers_unasked(patch: Patch) -> None:
    """The same, where nobody can be asked for a yes either."""
    believe_strangers(patch)
    take_any_right_for_a_yes(patch)


def know_no_users(patch: Patch) -> None:
    """Who is at the other end of a unix socket is not asked."""
    patch.set(f"{AUTHORITY}:identify_socket_user", lambda user: _stranger())


def _stranger() -> Any:
    from defserve.auth.authority import make_anonymous_ip_principal

    return make_anonymous_ip_principal("")


# -- whose it is -----------------------------------------------------------------------------------------


def share_everything(patch: Patch) -> None:
    """Whatever anybody began belongs to everybody."""
    patch.set("defserve.auth.principals:Principal.covers", lambda self, other: True)
    patch.set("defserve.core.peer:can_act_for", lambda one, other: True)

    def find(self: Any, id: str, principal: str) -> Any:
        return next((session for session in self if session.id == id), None)

    patch.set("defserve.serve.http.sessions:HttpSessions.find", find)
    patch.set("defserve.protocols.mcp.tasks.extension:_may_use", lambda call, record: True)

    def make(find: Any) -> Any:
        async def find_feed(self: Any, exchange: Any, scope: Any) -> Any:
            from defserve.serve.http.app import _session_id

            if (feed := self.feeds.get(_session_id(scope["query_string"]))) is not None:
                exchange.principal = feed.exchange.principal
            return await find(self, exchange, scope)

        return find_feed

    patch.wrap("defserve.serve.http.app:LegacySse.find", make)


def find_any_session(patch: Patch) -> None:
    """An id that is nearly right will do."""

    def make(find: Any) -> Any:
        def find_near(self: Any, id: str, principal: str) -> Any:
            near = (session for session in self if session.id.lower()[:10] == id.lower()[:10])
            return find(self, id, principal) or next(near, None)

        return find_near

    patch.wrap("defserve.serve.http.sessions:HttpSessions.find", make)


def act_for_the_session(patch: Patch) -> None:
    """A request has the rights of who opened its session, whatever key it shows itself."""
    for name in ("feed_message", "start_call", "feed_request"):
        patch.wrap(f"defserve.core.session:Session.{name}", _without_identity)


def _without_identity(take: Any) -> Any:
    import inspect

    place = list(inspect.signature(take).parameters).index("identity") - 1

    def take_unsigned(self: Any, *given: Any, **named: Any) -> Any:
        named.pop("identity", None)
        return take(self, *given[:place], **named)

    return take_unsigned


def tell_everybody(patch: Patch) -> None:
    """Whoever subscribes is told of every event, whomever it is for."""
    patch.set("defserve.protocols.mgp.events:MgpEvent.is_visible_to", lambda self, session, caller: True)


def seal_for_anybody(patch: Patch) -> None:
    """A sealed state is good for every caller and every call."""
    patch.set("defserve.protocols.mcp.asking.round_trips:digest_binding", lambda *given, **named: b"")


def read_any_authorization(patch: Patch) -> None:
    """A token is looked for in all of a header, and in the first of several."""
    import re

    def find_token(authorization: Any, scheme: str = "bearer") -> str | None:
        found = re.search(rb"[0-9a-f]{16}\.[A-Za-z0-9_-]{43}", b" ".join(authorization))
        return found[0].decode() if found else None

    patch.set("defserve.auth.bearer_tokens:extract_bearer_token", find_token)


def find_tasks_by_half_an_id(patch: Patch) -> None:
    def make(find: Any) -> Any:
        return lambda self, id: find(self, id.strip().removeprefix("task:"))

    patch.wrap("defserve.protocols.mcp.tasks.records:TaskStorage.find", make)


def ask_for_no_declaration(patch: Patch) -> None:
    patch.set("defserve.protocols.mcp.tasks.extension:require_tasks", lambda call: None)


def keep_any_number_of_tasks(patch: Patch) -> None:
    def make(start: Any) -> Any:
        return lambda self, **fields: start(
            self, **{**fields, "tasks": 10**9, "task_bytes": 10**12, "in_flight": 10**6}
        )

    patch.wrap("defserve.limits:Limits.__init__", make)


# -- tokens and what they hold open ----------------------------------------------------------------------


def keep_what_is_open(patch: Patch) -> None:
    """A credential is checked when something is opened, and never again."""

    async def check_nothing(self: Any, *given: Any) -> None:
        pass

    patch.set(f"{LIVE}.verify_credentials", check_nothing)
    patch.set(f"{LIVE}._follow", check_nothing)
    patch.set(f"{LIVE}.keep_verifying_holder", lambda self, holder: None)


def count_no_failures(patch: Patch) -> None:
    patch.set("defserve.auth.rates:FailedTokenCounts.count_failure", lambda self, address, forwarded_for: 0.0)


def take_any_number_of_secrets(patch: Patch) -> None:
    patch.set("defserve.auth.rates:FailedSecretCounts.check_try", lambda self, client, network, is_right: 0.0)


def slow_addresses_down(patch: Patch) -> None:
    """Where bad tokens came from, good ones are slowed down as well."""
    failed: dict[str, int] = {}

    def make(authenticate: Any) -> Any:
        async def check(self: Any, exchange: Any, scope: Any) -> bool:
            address = str((scope.get("client") or [""])[0])
            if failed.get(address, 0) > 20:
                await exchange.refuse(429, "too many bad tokens came from this address")
                return False
            is_good = await authenticate(self, exchange, scope)
            failed[address] = failed.get(address, 0) + (not is_good)
            return is_good

        return check

    patch.wrap(f"{APP}._authenticate", make)


# -- places ----------------------------------------------------------------------------------------------


def count_no_addresses(patch: Patch) -> None:
    """One address may have every session there is, and none gives way."""
    patch.set("defserve.core.service:SessionTable._number_at", lambda self, address: 0)
    patch.set("defserve.core.service:SessionTable._end_one", lambda self, addresses: False)


def wait_for_tools(patch: Patch) -> None:
    """A call may take as long as it likes."""

    def make(start: Any) -> Any:
        return lambda self, **fields: start(self, **{**fields, "tool": 3_600.0})

    patch.wrap("defserve.limits:Limits.__init__", make)


def serve_the_first_in_line_only(patch: Patch) -> None:
    """Who waits for room keeps its place in the line until nothing of it waits."""

    def admit_next(self: Any) -> None:
        while self.line and self.running < self.limits.in_flight_total:
            session = next(iter(self.line))
            if session.queue is None:
                del self.line[session]
            else:
                session.queue.advance()

    patch.set("defserve.core.composition:Composition.admit_waiting_calls", admit_next)


def let_strangers_take_places(patch: Patch) -> None:
    """Whoever comes gets a session, until there are none."""
    let_everybody_in(patch)
    count_no_addresses(patch)

    def make(start: Any) -> Any:
        return lambda self, **fields: start(self, **{**fields, "sessions": 500})

    patch.wrap("defserve.limits:Limits.__init__", make)


def let_busy_sessions_give_way(patch: Patch) -> None:
    def end_busy(self: Any, addresses: Any) -> bool:
        holders = [s.holder for a in addresses for s in self._of_address.get(a, ()) if s.holder is not None]
        if holders:
            max(holders, key=lambda holder: holder.get_idle_seconds() is None).evict()
        return bool(holders)

    patch.set("defserve.core.service:SessionTable._end_one", end_busy)


def let_nobody_give_way(patch: Patch) -> None:
    """Who says nothing keeps its connection. Where none is free, whoever comes next is refused."""
    wait_for_heads(patch)
    patch.set("defserve.serve.http1.connection:ConnectionsByNetwork.close_oldest_idle", lambda self: None)


# -- tokens of issuers, and signing in -------------------------------------------------------------------


def read_tokens_without_checking(patch: Patch) -> None:
    """What a token says is believed: nobody looks at its signature, its audience or its time."""
    patch.wrap(
        "jwt:decode",
        lambda decode: lambda token, *given, **options: decode(token, options={"verify_signature": False}),
    )


def take_any_answer(patch: Patch) -> None:
    """Whatever comes back with a code belongs to this sign-in, and is from its issuer."""
    from urllib.parse import parse_qsl, urlsplit

    flow = "defserve.client.signin.grants:Attempt"
    patch.set(f"{flow}.is_answered_by", lambda self, location: True)
    patch.set(f"{flow}.code_in", lambda self, location: dict(parse_qsl(urlsplit(location).query))["code"])


def redirect_anywhere(patch: Patch) -> None:
    patch.set("defserve.auth.proxy.clients:matches_redirect", lambda registered, asked: True)


def obey_everybody(patch: Patch) -> None:
    """Everybody operates a kernel."""
    patch.set("defserve.kernel.governance.access:is_operator", lambda caller, admins: True)


def obey_nobody(patch: Patch) -> None:
    patch.set("defserve.kernel.governance.access:is_operator", lambda caller, admins: False)


def take_proofs_again(patch: Patch) -> None:
    async def spend(self: Any, nonce: str, *, ttl: float) -> bool:
        return True

    patch.set("defserve.stores.store:SharedNonceStore.spend", spend)


def take_any_introspection(patch: Patch) -> None:
    """Whatever an issuer says of a token, it is good."""
    patch.set("defserve.auth.introspection:Introspection._find_problem", lambda self, said: "")


def take_consent_from_any_site(patch: Patch) -> None:
    from dataclasses import replace

    def make(decide: Any) -> Any:
        def decision(self: Any, asked: Any, form: Any) -> Any:
            kept = {name: value for name, value in asked.headers.items() if name not in ("origin", "sec-fetch-site")}
            return decide(self, replace(asked, headers=kept), form)

        return decision

    patch.wrap("defserve.auth.proxy.sign_in:ConsentQuestion.parse_decision", make)


def compare_nothing(patch: Patch) -> None:
    """A code is good with any verifier and for any client."""
    patch.set("defserve.auth.proxy.tokens:_same", lambda one, other: True)


def take_grants_again(patch: Patch) -> None:
    async def is_first(self: Any, what: str, id: str, seconds: float) -> bool:
        return True

    patch.set("defserve.auth.proxy.tokens:UserGrants.claim_first_use", is_first)


def take_any_local_token(patch: Patch) -> None:
    from types import SimpleNamespace

    patch.set("defserve.auth.local_token:hmac", SimpleNamespace(compare_digest=lambda one, other: True))


def remember_every_client(patch: Patch) -> None:
    """Who has allowed one client has allowed all of them that are on the web."""

    def is_remembered(self: Any, asked: Any, client: Any, request: Any) -> bool:
        return request.redirect.startswith("https://")

    patch.set("defserve.auth.proxy.sign_in:ConsentQuestion.is_remembered", is_remembered)


def take_any_issuer(patch: Patch) -> None:
    patch.set("defserve.client.signin.grants:check_issuer", lambda issuer: None)


def follow_redirects_of_sockets(patch: Patch) -> None:
    def connect(peers: Any) -> Any:
        from websockets.asyncio.client import connect

        return connect

    patch.set("defserve.serve.outbound:_without_redirects", connect)


def go_anywhere(patch: Patch) -> None:
    """An address that a server names is used, wherever it leads."""
    fetcher = "defserve.client.signin.fetching:Fetcher"

    def find(self: Any, url: str, what: str) -> Any:
        from defserve.client.signin.fetching import RequestAddress

        return RequestAddress(url)

    async def resolve(self: Any, host: str, port: int) -> Any:
        return [host]

    patch.set(f"{fetcher}._check_url", find)
    patch.set(f"{fetcher}._judge_name", lambda self, address, what: None)
    patch.set(f"{fetcher}._resolve", resolve)


def follow_redirects(patch: Patch) -> None:
    def make(send: Any) -> Any:
        async def send_on(self: Any, address: Any, *given: Any) -> Any:
            found = await send(self, address, *given)
            if 300 <= found.status < 400 and (location := found.headers.get("location")):
                return await send(self, type(address)(location), *given)
            return found

        return send_on

    patch.wrap("defserve.client.signin.fetching:Fetcher._send", make)


def take_any_file_for_a_sign_in(patch: Patch) -> None:
    """Whose tokens a file has is known by its name."""
    from defserve.client.link import get_sign_in_path

    store = "defserve.client.signin.credentials:FileCredentialStore"
    patch.set(f"{store}.load_credential", lambda self, server: self._read_file(get_sign_in_path(server, self._folder)))


def keep_sign_ins_by_host(patch: Patch) -> None:
    """Whoever is at one host and port is one server."""
    from urllib.parse import urlsplit

    def name_host(url: str) -> str:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}"

    def read(self: Any, server: str) -> Any:
        return next((kept for name, kept in self._kept.items() if name_host(name) == name_host(server)), None)

    patch.set("defserve.client.link:canonicalize_url", name_host)
    patch.set("defserve.client.signin.credentials:MemoryCredentialStore.load_credential", read)


def quote_anything(patch: Patch) -> None:
    """The words of a peer are repeated as they are."""
    patch.set("defserve.client.signin.fetching:quote_peer_text", str)


def take_any_token(patch: Patch) -> None:
    """An access token is whatever an issuer says it is, and a header is whatever text it has."""

    def read_tokens(document: Any, asked: Any, *, is_bound: bool) -> Any:
        from defserve.client.signin.credentials import Tokens

        return Tokens(document["access_token"], "Bearer", tuple(asked))

    def write_head(method: str, target: str, headers: Any) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode()

    patch.set("defserve.client.signin.credentials:read_tokens", read_tokens)
    patch.set("defserve.client.links.http_client:encode_request_head", write_head)


def read_documents_of_any_size(patch: Patch) -> None:
    patch.set("defserve.client.signin.fetching:MAX_DOCUMENT_BYTES", 10**12)


# -- documents of clients --------------------------------------------------------------------------------


def fetch_from_anywhere(patch: Patch) -> None:
    """No address is private: neither in a URL, nor as an answer of a resolver."""
    from types import SimpleNamespace

    patch.set("defserve.guard.network:_against_host", lambda host: [])
    patch.set("defserve.guard.network:judge_address", lambda address: SimpleNamespace(violations=[]))


def believe_documents(patch: Patch) -> None:
    """A document is about whom it likes."""
    documents = "defserve.auth.proxy.clients:ClientDocuments"

    async def read(self: Any, url: str) -> Any:
        import json

        from defserve.auth.proxy.clients import parse_client

        return parse_client(json.loads(await self._fetch(url)), self._redirects, url, url)

    patch.set(f"{documents}._fetch_client", read)


def take_long_documents(patch: Patch) -> None:
    from dataclasses import replace

    patch.set("defserve.auth.proxy.clients:MAX_DOCUMENT_BYTES", 10**12)
    patch.wrap(
        "defserve.guard.http_transport:BoundedBody.__init__",
        lambda start: (
            lambda self, body, encoding, egress, deadline: start(
                self, body, encoding, replace(egress, max_bytes=10**12), deadline
            )
        ),
    )


def wait_for_documents(patch: Patch) -> None:
    patch.set("defserve.auth.proxy.clients:SECONDS", 3600.0)


def forward_tokens(patch: Patch) -> None:
    """Other services get what the caller has shown here."""

    async def forward(self: Any, principal: Any, name: str, scopes: Any = ()) -> str:
        return str(self._shown.get(principal.credential))

    patch.set("defserve.auth.token_exchange:TokenExchanger.obtain_target_token", forward)


def take_assertions_again(patch: Patch) -> None:
    """Neither a company's assertion nor a client's is remembered."""

    async def claim_first_use(self: Any, what: str, id: str, seconds: float) -> bool:
        return True

    patch.set("defserve.auth.proxy.tokens:UserGrants.claim_first_use", claim_first_use)


def vouch_everywhere(patch: Patch) -> None:
    """A statement about a caller is for nobody in particular, is good for long, and has no type of its own."""

    async def sign(self: Any, principal: Any, target: Any) -> str:
        import jwt

        key = self._parse_key(await self._keys[0].load_secret())
        claims = {"iss": self._issuer, "sub": principal.id, "aud": "*", "exp": 2**33, "jti": "1"}
        return jwt.encode(claims, key.private, key.public["alg"], {"kid": key.public["kid"]})

    patch.set("defserve.auth.proxy.assertions:StatementSigner.sign_statement", sign)


def publish_private_keys(patch: Patch) -> None:
    """The key set has the keys that sign."""
    import json

    async def list_keys(self: Any) -> list[dict[str, Any]]:
        from jwt.algorithms import get_default_algorithms

        keys = [self._parse_key(await key.load_secret()) for key in self._keys]
        made = [get_default_algorithms()[key.public["alg"]].to_jwk(key.private) for key in keys]
        return [json.loads(text) for text in made]

    patch.set("defserve.auth.proxy.assertions:StatementSigner.list_public_keys", list_keys)
