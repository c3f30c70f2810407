"""HTTP for a server: combines the rules of the protocol, the sessions of the runner and the transport."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from socket import socket
from time import time
from typing import TYPE_CHECKING, Final, cast

from defserve.auth import Auth
from defserve.auth.auth_options import list_operator_warnings
from defserve.auth.authority import normalize_ip_address
from defserve.auth.bearer_tokens import check_verifier_settings
from defserve.auth.oauth import is_loopback
from defserve.core.composition import Composition
from defserve.core.messages import encode
from defserve.errors import DefserveError, UsageError
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.lifecycle import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from defserve.protocols.mcp.versions import HANDSHAKE_VERSIONS, PRIMING_EVENT_VERSIONS, STATELESS_VERSIONS
from defserve.protocols.mgp.extension import MGP
from defserve.protocols.mgp.terms import get_tool_security
from defserve.serve.address import Address
from defserve.serve.http.app import HttpApp, HttpOptions
from defserve.serve.http.other_endpoints import PageContent, PageRules, PublicDocument
from defserve.serve.http.streamable import HttpProtocolRules
from defserve.serve.network import NetworkOptions, run_listener
from defserve.serve.session_opener import SessionOpener
from defserve.serve.sockets import bind_sockets
from defserve.server.decorators import WebFields
from defserve.server.metrics import Metrics
from defserve.server.sharing import find_process_sharing

if TYPE_CHECKING:
    from defserve.protocols.mcp.events.extension import Events
    from defserve.protocols.mcp.tools import Tool
    from defserve.server.workers.worker import Worker

# The address of a unix socket has no path for the endpoint, so this one is used.
UNIX_PATH = "/mcp"

NO_SESSIONS = f"This server has no sessions, so it cannot be initialized: use protocol version {STATELESS_VERSIONS[-1]}"


def make_asgi_app(
    composition: Composition, mcp: MCP, auth: Auth | None, options: WebFields, address: Address | None = None
) -> HttpApp:
    """The ASGI application of a composition, at an address of its own or mounted in another application."""
    return make_http_app(SessionOpener(composition), mcp, auth, options, address)


def make_http_app(
    provider: SessionOpener,
    mcp: MCP,
    auth: Auth | None,
    options: WebFields,
    address: Address | None,
    local_key: str | None = None,
    group: Worker | None = None,
) -> HttpApp:
    """The application whose sessions `provider` opens. Who shows the `local_key` is the local user.

    In a `group` of processes, each one answers for all of them too.
    """
    refuse_scopes_without_auth(mcp, auth)
    if auth is not None:
        check_verifier_settings(auth.verifier)
    is_unix = address is not None and address.scheme == "unix"
    if address is not None and not is_unix and not is_loopback(address.host):
        _forbid_loopback_webhooks(provider.composition)
    _check_local(options, address)
    checked = auth
    if local_key is not None:
        from defserve.auth.local_token import add_local_token_auth

        checked = add_local_token_auth(local_key, auth)

    async def ready() -> tuple[int, bytes]:
        await provider.start(served.close)
        return await check_readiness(provider.composition, checked)

    metrics = partial(make_metrics_response, provider.composition) if group is None else group.metrics
    rest = None
    if options.get("rest", False):
        from defserve.server.rest import make_rest_rules

        rest = make_rest_rules(mcp, authorized=auth is not None)
    sharing = find_process_sharing(provider.composition)
    http = HttpOptions(
        page=_page(mcp, auth, options, is_unix=is_unix),
        documents=make_public_documents(mcp, options),
        path=UNIX_PATH if is_unix else address.path if address is not None else "",
        bind=address.host if address is not None and not is_unix else "127.0.0.1",
        port=address.port if address is not None else None,
        allowed_hosts=tuple(options.get("allowed_hosts", ())),
        allowed_origins=tuple(options.get("allowed_origins", ())),
        trusted_proxy=options.get("trusted_proxy", False),
        trust_same_user=options.get("trust_same_user", False),
        legacy_sse=options.get("legacy_sse", False),
        auth=checked,
        probes={"/healthz": _liveness, "/readyz": ready, **(group.probes if group is not None else {})},
        reports={"/metrics": metrics} if options.get("metrics", False) else {},
        rest=rest,
        shared=sharing.link if sharing is not None else None,
    )
    served = HttpApp(provider, _rules(mcp, provider.composition, options), http)
    if sharing is not None:
        sharing.share_endpoint(provider.composition, mcp.subscriptions, served.streamable)
    provider.hang_up = served.drain
    return served


def _forbid_loopback_webhooks(composition: Composition) -> None:
    """A server that other machines reach sends nothing to its own, whatever its settings say."""
    for extension in composition.extensions:
        if extension.name == "events":
            cast("Events", extension).ignore_allow_loopback_option()


def _rules(mcp: MCP, composition: Composition, options: WebFields) -> HttpProtocolRules:
    """What MCP says about HTTP."""
    return HttpProtocolRules(
        handshake_versions=HANDSHAKE_VERSIONS,
        stateless_versions=STATELESS_VERSIONS,
        opening="initialize",
        version_key=PROTOCOL_VERSION_META_KEY,
        capabilities_key=CLIENT_CAPABILITIES_META_KEY,
        priming_event_versions=PRIMING_EVENT_VERSIONS,
        param_headers=mcp.tools.param_headers,
        scopes=mcp.tools.scopes,
        refusal=composition.refusal,
        no_sessions=NO_SESSIONS if options.get("stateless", False) else "",
    )


def _page(mcp: MCP, auth: Auth | None, options: WebFields, *, is_unix: bool) -> PageRules | None:
    """The page for browsers. By itself it is only where a browser reaches this machine directly, and needs no token."""
    wanted = options.get("page")
    if wanted is False or (wanted is None and (auth is not None or is_unix or options.get("trusted_proxy", False))):
        return None

    def content() -> PageContent:
        from defserve.server.page import make_page_content

        has_sign_in = auth is not None and auth.resource is not None
        api = None
        if options.get("rest", False):
            from defserve.server.rest import make_api_page_opener

            api = make_api_page_opener(mcp)
        return make_page_content(mcp, everywhere=wanted is True, has_sign_in=has_sign_in, api=api)

    return PageRules(wanted is True, content)


# -- Documents that everybody may read: who the server is, and the proof that a domain is its publisher's.


CARD_PATH: Final = "/server-card"
CATALOG_PATH: Final = "/.well-known/ai-catalog.json"
CHALLENGE_PATH: Final = "/.well-known/openai-apps-challenge"
CHALLENGE_VARIABLE: Final = "DEFSERVE_OPENAI_CHALLENGE"
CHALLENGE: Final = re.compile(r"[!-~]{1,1024}")


def make_public_documents(mcp: MCP, options: WebFields) -> dict[str, PublicDocument]:
    """The documents by their path. Raises UsageError for a challenge that is no token."""
    documents: dict[str, PublicDocument] = {}
    if options.get("card", True):
        card, catalog = partial(_make_card, mcp), partial(_make_catalog, mcp)
        documents[CARD_PATH] = PublicDocument("application/mcp-server-card+json", card)
        documents[CATALOG_PATH] = PublicDocument("application/ai-catalog+json", catalog)
    token = options.get("openai_challenge") or os.environ.get(CHALLENGE_VARIABLE)
    if token:
        if CHALLENGE.fullmatch(token) is None:
            raise UsageError(
                "the OpenAI domain challenge is not a token: it has spaces or other characters, or is too long",
                fix=f"copy the token from the portal as it is: --openai-challenge TOKEN, or {CHALLENGE_VARIABLE}",
            )
        documents[CHALLENGE_PATH] = PublicDocument("text/plain", partial(_encode_token, token), "no-store")
    return documents


def _encode_token(token: str, address: str) -> bytes:
    return token.encode()


def _make_card(mcp: MCP, address: str) -> bytes | None:
    from defserve.protocols.mcp.server_card import make_server_card

    card = make_server_card(mcp.lifecycle.identity.profile.at_address(address))
    return encode(card) if card is not None else None


def _make_catalog(mcp: MCP, address: str) -> bytes | None:
    from defserve.protocols.mcp.server_card import make_ai_catalog, make_server_card

    profile = mcp.lifecycle.identity.profile.at_address(address)
    if make_server_card(profile) is None:
        return None
    return encode(make_ai_catalog(profile, address.rstrip("/") + CARD_PATH))


def run_network_server(
    composition: Composition,
    mcp: MCP,
    auth: Auth | None,
    address: Address,
    options: WebFields,
    *,
    show_address: Callable[[str], None] | None = None,
    show_note: Callable[[str], None] | None = None,
) -> int:
    """Serve on the network until a signal or a client ends it. Returns the exit code."""
    provider, network = SessionOpener(composition), make_network_options(options)
    if show_address is not None:
        network = replace(network, show_address=show_address)
    if address.scheme != "unix":
        network = replace(network, announce=partial(announce_to_operator, composition, auth, show_note or _print_line))
    if not options.get("local_token", False):
        return run_listener(
            make_http_app(provider, mcp, auth, options, address), address, network, composition.limits, provider
        )
    _check_local(options, address)
    from defserve.auth.local_token import publish_local_key

    with bind_sockets(address) as sockets, publish_local_key(list_bound_addresses(sockets)) as key:
        served = make_http_app(provider, mcp, auth, options, address, key)
        return run_listener(served, address, network, composition.limits, provider, sockets)


def make_network_options(options: WebFields) -> NetworkOptions:
    """The options that say how to listen."""
    return NetworkOptions(
        certfile=options.get("certfile"),
        keyfile=options.get("keyfile"),
        forwarded=normalize_ip_address if options.get("trusted_proxy", False) else None,
        peer_user=options.get("trust_same_user", False),
    )


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def list_bound_addresses(sockets: Iterable[socket]) -> list[tuple[str, int]]:
    """The addresses that sockets are bound to."""
    return [one.getsockname()[:2] for one in sockets]


def _check_local(options: WebFields, address: Address | None) -> None:
    """Raises UsageError for options about local callers that do not fit the address."""
    if options.get("trust_same_user", False) and (address is None or address.scheme != "unix"):
        raise UsageError(
            "trust_same_user is for unix sockets: only there the system says which user calls",
            fix="serve on unix:/path, or use local_token on a loopback address",
        )
    if options.get("trust_same_user", False) and options.get("trusted_proxy", False):
        raise UsageError(
            "trust_same_user and trusted_proxy contradict each other: callers behind a proxy are not its user",
            fix="leave out one of the two",
        )
    if options.get("local_token", False):
        if address is None or address.scheme == "unix":
            raise UsageError(
                "local_token needs a loopback address of the server's own",
                fix='serve with run(on="http://127.0.0.1:8000/mcp"); on a unix socket use trust_same_user',
            )
        from defserve.auth.local_token import check_local_token_host

        check_local_token_host(address.host)


async def make_metrics_response(composition: Composition) -> tuple[int, bytes]:
    """The metrics of this process."""
    return 200, "".join(e.text(composition) for e in composition.extensions if isinstance(e, Metrics)).encode()


async def _liveness() -> tuple[int, bytes]:
    """Whether the process answers. A failed health check is no reason to restart it, so none runs here."""
    return 200, b"ok"


async def check_readiness(composition: Composition, auth: Auth | None) -> tuple[int, bytes]:
    """Whether this server should get calls. While it can check no token, it would refuse them all."""
    if composition.draining:
        return 503, b"draining"
    if auth is not None and not await auth.is_ready():
        return 503, b"tokens cannot be checked"
    found = [await e.health.readiness(composition) for e in composition.extensions if isinstance(e, MGP)]
    word = found[0] if found else "healthy"
    return 503 if word == "unhealthy" else 200, word.encode()


def refuse_scopes_without_auth(mcp: MCP, auth: Auth | None) -> None:
    """Raises UsageError if an item needs scopes but no tokens are checked: then nobody can prove a scope."""
    for item in () if auth is not None else mcp.items():
        if item.options.scopes:
            raise UsageError(
                f"{item.kind} {item.name!r} needs scopes {list(item.options.scopes)}, and this server checks no tokens",
                where=item.where,
                fix="give Server(auth=…), or serve it on stdio: only",
            )


# -- What an operator reads at the start: the dangerous tools, and whose calls of them would be refused.


MAX_LISTED_NAMES = 5


async def announce_to_operator(composition: Composition, auth: Auth | None, say: Callable[[str], None]) -> None:
    """Say what the operator should know before callers find out."""
    for problem, fix in await list_operator_warnings(auth) if auth is not None else ():
        say(f"warning: {problem}")
        say(f"  fix: {fix}")
    await announce_dangerous_tools(composition, auth, say)


async def announce_dangerous_tools(composition: Composition, auth: Auth | None, say: Callable[[str], None]) -> None:
    """Say which tools have to be confirmed, and who cannot call them. The rule is `protocols.mgp.permissions`'."""
    mgp = next((extension for extension in composition.extensions if isinstance(extension, MGP)), None)
    if mgp is None or mgp.options.confirm == "never":
        return
    securities = [(tool, get_tool_security(tool)) for tool in mgp.tools]
    tools = [tool for tool, found in securities if found is not None and found.security.confirmation_required]
    if not tools:
        return
    rights, unasked = "", list[str]()
    if mgp.options.confirm == "always":
        unasked = ["every caller"]
    else:
        rights = ", or if a key, token or access entry names the tool"
        unasked = await _list_callers_to_ask(mgp, auth, tools) if auth is not None else []
    names = _list_names([tool.name for tool in tools])
    say(f"dangerous tools: {names}. A call runs if a person confirms it through the client{rights}.")
    say("  always refused: callers without a token")
    if unasked:
        say(f"  refused if the client can't ask a person: {_list_names(unasked)}")


async def _list_callers_to_ask(mgp: MGP, auth: Auth, tools: list[Tool]) -> list[str]:
    """Who has no right that names each of the dangerous tools it may call."""
    from defserve.auth.api_keys import ApiKeys
    from defserve.auth.issuers import Issuers
    from defserve.protocols.mgp.permissions import find_right_naming_tool

    listed: dict[str, None] = {}
    verifier = auth.verifier
    for one in verifier.verifiers if isinstance(verifier, Issuers) else (verifier,):
        if not isinstance(one, ApiKeys):
            if not all(map(mgp.permissions.list_dangers_granted_by_name, tools)):
                listed["tokens without the scope tool:invoke:NAME"] = None
            continue
        try:
            keys = [key for key in await one.keys() if not key.is_expired(time())]
        except DefserveError:  # the calls will say so
            continue
        for caller in (auth.complete_principal(key.make_principal()) for key in keys):
            unnamed = [
                t.name for t in tools if caller.may_invoke(t.name) and not find_right_naming_tool(mgp, caller, t)
            ]
            if unnamed:
                listed[f'key "{caller.id}" (it does not name {_list_names(unnamed)})'] = None
    return list(listed)


def _list_names(names: list[str]) -> str:
    more = len(names) - MAX_LISTED_NAMES
    return ", ".join(names[:MAX_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")
