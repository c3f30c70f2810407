"""HTTP for a server: the protocol's rules, the runner's conversations and the transport's syntax put together."""

from __future__ import annotations

from defserve.auth import Auth
from defserve.core.composition import Composition
from defserve.errors import UsageError
from defserve.options import WebFields
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.lifecycle import CAPABILITIES_KEY, HANDSHAKE_VERSIONS, STATELESS_VERSIONS, VERSION_KEY
from defserve.runner.address import Address
from defserve.runner.network import NetworkOptions, listen
from defserve.runner.web import WebDesk
from defserve.transports.http import HttpApp, HttpOptions
from defserve.transports.streamable import Rules

# SEP-1699: older clients take the empty first event for a broken message.
PRIMED_VERSIONS = frozenset({"2025-11-25"})
BATCH_VERSIONS = frozenset({"2025-03-26"})

# The address of a unix socket has no room for it.
UNIX_PATH = "/mcp"


def app(
    composition: Composition, mcp: MCP, auth: Auth | None, options: WebFields, address: Address | None = None
) -> HttpApp:
    """The ASGI application that serves a composition, at an address of its own or mounted in another."""
    _refuse_scopes_without_auth(mcp, auth)
    rules = Rules(
        handshake_versions=HANDSHAKE_VERSIONS,
        stateless_versions=STATELESS_VERSIONS,
        opening="initialize",
        version_key=VERSION_KEY,
        capabilities_key=CAPABILITIES_KEY,
        primed_versions=PRIMED_VERSIONS,
        batch_versions=BATCH_VERSIONS,
        param_headers=mcp.tools.param_headers,
        scopes=mcp.tools.scopes,
    )
    http = HttpOptions(
        path=_path(address),
        bind=address.host if address is not None and address.scheme != "unix" else "127.0.0.1",
        port=address.port if address is not None else None,
        allowed_hosts=tuple(options.get("allowed_hosts", ())),
        allowed_origins=tuple(options.get("allowed_origins", ())),
        trusted_proxy=options.get("trusted_proxy", False),
        is_local=address is not None and address.scheme == "unix",
        legacy_sse=options.get("legacy_sse", False),
        auth=auth,
    )
    return HttpApp(WebDesk(composition), rules, http)


def _path(address: Address | None) -> str:
    if address is None:
        return ""
    return UNIX_PATH if address.scheme == "unix" else address.path


def run(composition: Composition, mcp: MCP, auth: Auth | None, address: Address, options: WebFields) -> int:
    """Serve on the network until a signal ends it; the exit code."""
    served = app(composition, mcp, auth, options, address)
    network = NetworkOptions(
        parser=options.get("parser", "auto"),
        certfile=options.get("certfile"),
        keyfile=options.get("keyfile"),
        trusted_proxy=options.get("trusted_proxy", False),
    )
    return listen(served, address, network, composition.limits, served.drain)


def _refuse_scopes_without_auth(mcp: MCP, auth: Auth | None) -> None:
    """Over the network, scopes nobody can prove would protect nothing."""
    for item in () if auth is not None else mcp.items():
        if item.options.scopes:
            raise UsageError(
                f"{item.kind} {item.name!r} needs scopes {list(item.options.scopes)}, and this server checks no tokens",
                where=item.where,
                fix="give Server(auth=…), or serve it on stdio: only",
            )
