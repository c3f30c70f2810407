"""The peers, by name and release. The faults that are a peer's own are here too, each with how that was found out."""

from __future__ import annotations

from dataclasses import replace

from tests.peers.packages import Package
from tests.peers.peer import (
    ALL_WAYS,
    ANY_WAYS,
    HTTP,
    HTTP_ANY,
    HTTP_NEW,
    OLD_WAYS,
    SSE,
    STDIO,
    STDIO_ANY,
    STDIO_NEW,
    Fault,
    Peer,
    Way,
)

STRUCTURED = ("structured", "structured list", "structured none", "formats")
PROTOCOL = ("connect", "version", "list", "call", *STRUCTURED, "errors")
SERVER_ACTS = ("progress", "progress ×200", "elicitation", "sampling")
DATA = ("resources", "prompts")
TOKEN = ("auth", "no token")
ALL = (*PROTOCOL, *SERVER_ACTS, *DATA, *TOKEN, "resumption")
TOUR = ("templates", "completion", "subscriptions", "list changed", "logs", "roots", "cancellation")
# Hosts do not say which version they agreed on.
HOST = ("connect", "list", "call", "structured", "structured list", "errors", *DATA, *TOKEN)
# One tool that it cannot read would cost it the whole server.
TOOLS_ONLY = ("connect", "list", "call", "structured", "errors", "auth")
# Hosts that make something else of each schema: a model of pydantic, a Zod schema, a table of types.
SCHEMAS = (*TOOLS_ONLY, "no parameters", "recursive", "structured list")
# What a model is given of a result: no structured content, but the value.
AGENT = ("connect", "version", "list", "call", "structured", "errors", *SERVER_ACTS, *DATA, *TOKEN, "resumption")
OFFICIAL = (*ALL, *TOUR)
# Its client has no subscriptions, and hears of lists in the handshake era only.
FASTMCP = (*ALL, "values", "several servers", *(name for name in TOUR if name not in ("subscriptions", "list changed")))


def _pip(name: str, version: str, *beside: str) -> Package:
    return Package("pip", name, version, beside)


def _npm(name: str, version: str) -> Package:
    return Package("npm", name, version)


PY_1, PY_2 = _pip("mcp", "1.30.0"), _pip("mcp", "2.3.0")
TS_1, TS_2 = _npm("@modelcontextprotocol/sdk", "1.32.2"), _npm("@modelcontextprotocol/client", "2.4.0")
INSPECTOR = _npm("@modelcontextprotocol/inspector", "2.12.0")
CLAUDE_CODE = _npm("@anthropic-ai/claude-code", "2.1.325")
# Its adapter does not know version 2 of the SDK.
SMOLAGENTS = _pip("smolagents[mcp]", "1.26.0", "mcp==1.30.0")
MASTRA = _npm("@mastra/mcp", "2.0.0")
LLAMA_INDEX, DSPY = _pip("llama-index-tools-mcp", "0.6.0"), _pip("dspy[mcp]", "3.4.1", "mcp==2.3.0")
LANGCHAIN = _pip("langchain-mcp-adapters", "0.3.2")

CLIENTS = (
    Peer("official Python client 1.x", "client", PY_1, "official.py", OLD_WAYS, OFFICIAL),
    Peer("official Python client 2.x", "client", PY_2, "official.py", ALL_WAYS, OFFICIAL),
    Peer("official TypeScript client 1.x", "client", TS_1, "typescript.cjs", OLD_WAYS, OFFICIAL),
    Peer("official TypeScript client 2.x", "client", TS_2, "typescript.cjs", ALL_WAYS, OFFICIAL),
    Peer("FastMCP 2.x", "client", _pip("fastmcp", "2.14.7"), "prefect.py", OLD_WAYS, FASTMCP),
    Peer("FastMCP 4.x", "client", _pip("fastmcp", "4.1.2"), "prefect.py", ALL_WAYS, FASTMCP),
    Peer("Inspector CLI", "client", INSPECTOR, "inspector.py", ANY_WAYS, (*HOST, "structured none"), runs_here=True),
)
HOSTS = (
    Peer("Claude Code", "host", CLAUDE_CODE, "claude_code.py", ANY_WAYS, ("health", *TOKEN), runs_here=True),
    Peer("LangChain", "host", LANGCHAIN, "langchain_adapters.py", ANY_WAYS, (*HOST, "progress", "elicitation")),
    Peer("OpenAI Agents", "host", _pip("openai-agents", "0.24.0"), "agents_sdk.py", ANY_WAYS, HOST),
    Peer("Pydantic AI", "host", _pip("pydantic-ai-slim[mcp]", "2.66.0"), "pydantic_toolset.py", ALL_WAYS, AGENT),
    Peer(
        "mcp-use", "host", _pip("mcp-use", "1.7.1"), "mcp_use_client.py", ANY_WAYS, (*HOST, "elicitation", "sampling")
    ),
    Peer("smolagents", "host", SMOLAGENTS, "smolagents_client.py", ANY_WAYS, SCHEMAS),
    Peer("LlamaIndex", "host", LLAMA_INDEX, "llama_index_tools.py", ANY_WAYS, SCHEMAS),
    Peer("dspy", "host", DSPY, "dspy_tools.py", ANY_WAYS, SCHEMAS),
    # Its second version has no SSE.
    Peer("Mastra", "host", MASTRA, "mastra.cjs", (STDIO_ANY, HTTP_ANY), SCHEMAS),
)


def _bridge(name: str, version: str, ways: tuple[Way, ...], faults: tuple[Fault, ...] = ()) -> Peer:
    features = (*(name for name in HOST if name not in TOKEN), *SERVER_ACTS)
    return Peer(name, "bridge", _npm(name, version), "bridge.py", ways, features, faults, True, {"bridge": name})


ONE_WAY = Fault(
    (STDIO,),
    SERVER_ACTS,
    "from HTTP to stdio it passes on the client's requests and their results. What a server sends by itself is lost.",
    "its `streamableHttpToStdio.js` hands requests to a client of its own without handlers, which answers the server's "
    "questions with *Method not found*. From stdio to HTTP, and through mcp-remote, all of it arrives.",
)
BRIDGES = (
    _bridge("supergateway", "4.0.0", (STDIO, HTTP, SSE), (ONE_WAY,)),
    _bridge("mcp-remote", "0.15.1", (STDIO,)),
)


# Which clients have the grants without a browser.
CREDENTIALS = ("client secret", "client signature")
GRANTS = {
    "official Python client 1.x": CREDENTIALS,
    "official Python client 2.x": (*CREDENTIALS, "identity assertion"),
    "official TypeScript client 1.x": CREDENTIALS,
    "official TypeScript client 2.x": (*CREDENTIALS, "identity assertion"),
    "FastMCP 4.x": CREDENTIALS,
}


def _signs_in(peer: Peer, client: str) -> Peer:
    """The same peer, as one that signs in: `client` says how."""
    return replace(
        peer,
        name=f"{peer.name}, signing in",
        role="sign-in",
        driver="signing_in.py",
        ways=(HTTP_ANY,),
        features=("sign in, issuer", "sign in, proxy", *GRANTS.get(peer.name, ())),
        faults=(),
        runs_here=True,
        settings={"client": client},
    )


SIGNING_IN = (
    *(_signs_in(peer, "official") for peer in CLIENTS if peer.name.startswith("official")),
    *(_signs_in(peer, "fastmcp") for peer in CLIENTS if peer.name.startswith("FastMCP")),
    *(_signs_in(peer, "inspector") for peer in CLIENTS if peer.package is INSPECTOR),
    *(_signs_in(peer, "claude") for peer in HOSTS if peer.package is CLAUDE_CODE),
    *(_signs_in(peer, "mcp-remote") for peer in BRIDGES if peer.name == "mcp-remote"),
)


def _server(name: str, package: Package) -> Peer:
    features = ("connect", "lists", "lists all", "answers")
    return Peer(
        f"{name} server", "server", package, "third_party.py", (STDIO_ANY,), features, (), True, {"server": name}
    )


SERVERS = (
    _server("everything", _npm("@modelcontextprotocol/server-everything", "2026.8.31")),
    _server("filesystem", _npm("@modelcontextprotocol/server-filesystem", "2026.8.31")),
    _server("memory", _npm("@modelcontextprotocol/server-memory", "2026.8.31")),
    _server("git", _pip("mcp-server-git", "2026.10.19")),
    _server("time", _pip("mcp-server-time", "2026.10.19")),
    _server("fetch", _pip("mcp-server-fetch", "2026.10.24")),
    # It offers resources, and does not know the list of templates.
    _server("sqlite", _pip("mcp-server-sqlite", "2025.4.25", "mcp==1.30.0")),
    # The same on an SDK that answers nothing after a method that it does not know, and does not exit either.
    _server("sqlite, SDK of 2025", _pip("mcp-server-sqlite", "2025.4.25", "mcp==1.6.0", "pydantic==2.10.6")),
)

# The issuer that peers sign in at.
ISSUER = _npm("oidc-provider", "9.13.3")

# What a kernel has behind it, beside the shop.
NOT_BEHIND = ("fetch", "sqlite", "sqlite, SDK of 2025")
BEHIND = {peer.settings["server"]: peer.package for peer in SERVERS if peer.settings["server"] not in NOT_BEHIND}
BEHIND |= {"fastmcp": _pip("fastmcp", "4.1.2"), "official": PY_1}
THROUGH = tuple(name for name in (*PROTOCOL, *SERVER_ACTS, *DATA) if name not in ("list", "progress ×200"))
EACH = ("pages", "each call", "each resource", "each prompt", "each progress", "each elicitation", "each sampling")
KERNEL_WAYS = (STDIO, HTTP, STDIO_NEW, HTTP_NEW)


ONE_PAGE = Fault(
    (STDIO, HTTP),
    ("pages",),
    "it reads the first page of a list.",
    "its `list_tools` sends one request, and none of its methods takes a cursor.",
)


def _through_kernel(peer: Peer) -> Peer:
    ways = tuple(way for way in KERNEL_WAYS if way in peer.ways)
    faults = (ONE_PAGE,) if peer.name == "FastMCP 2.x" else ()
    features = (*THROUGH, *(name for name in TOUR if name in peer.features), *EACH)
    return replace(peer, name=f"{peer.name}, kernel", role="kernel", ways=ways, features=features, faults=faults)


THROUGH_KERNEL = tuple(_through_kernel(peer) for peer in CLIENTS if not peer.runs_here)
PEERS = (*CLIENTS, *HOSTS, *BRIDGES, *SIGNING_IN, *SERVERS, *THROUGH_KERNEL)
