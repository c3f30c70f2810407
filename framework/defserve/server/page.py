"""The page that a browser gets at a server's address: what this is, how to connect each client, and the tools.

It says what a client without a token is told (`tools/list`), and stays below 16 kB. It needs no script but for its Copy
buttons, and loads nothing. Whatever the author or a mounted server wrote is text: escaped, shortened, on one line.
Nothing here is imported before a browser asks.
"""

from __future__ import annotations

import json
import shlex
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from html import escape
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pydantic_core import from_json

from defserve.base.hidden_characters import iter_hidden_character_notes
from defserve.base.html_pages import make_html_headers, render_html_page
from defserve.base.peer_bounds import ByteBoundedCache
from defserve.base.version import VERSION
from defserve.client.known_clients import KNOWN_CLIENTS, ClientApp, LaunchCommand, make_server_name
from defserve.core.call import Call, FinalReply
from defserve.core.extension import Offer
from defserve.core.json_values import is_array, is_object, read_required_names
from defserve.core.messages import Params, Request
from defserve.errors import UsageError
from defserve.protocols.mcp.extension import MCP
from defserve.protocols.mcp.versions import PROTOCOL_VERSIONS, STATELESS_VERSIONS
from defserve.protocols.mgp.terms import SECURITY_META_KEY
from defserve.serve.http.exchange import HTML_CONTENT_TYPE
from defserve.serve.http.other_endpoints import MakeApiPage, PageContent
from defserve.serve.sockets import HeaderList

OFFER: Final = Offer(
    STATELESS_VERSIONS[-1], {}, {"name": "page", "version": VERSION}, stateless=True, key=("page", VERSION)
)

MAX_CACHE_BYTES: Final = 8 * 1024 * 1024
NEEDS_TOKEN: Final = "Clients need a token to see them."
REFUSED: Final = "They are not listed here."
# Whether clients can sign in to a protected server by themselves → how a person gets in.
SIGN_IN: Final = {
    True: "This server is protected. Connect your client: it opens a page where you sign in.",
    False: "This server is protected. Clients need a token: ask whoever runs this server for one.",
}


def make_page_content(
    mcp: MCP, *, everywhere: bool, has_sign_in: bool = False, api: MakeApiPage | None = None
) -> PageContent:
    """The page of a server. `everywhere`: browsers elsewhere may see it too. `api`: the page of its REST API."""
    identity, kept = mcp.lifecycle.identity, ByteBoundedCache[bytes](MAX_CACHE_BYTES)

    # Without a token nothing is told about a server but who and where it is, and how to get in.
    unlisted = About(identity.name, identity.title or "", unlisted=NEEDS_TOKEN, sign_in=SIGN_IN[has_sign_in])

    def make_list_request(address: str) -> tuple[Request, PageReply]:
        profile = identity.profile
        description = profile.details or profile.description
        links = (("website", profile.website_url), ("repository", profile.repository_url))
        request = Request(1, "tools/list", {}, {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
        about = About(
            profile.short_name,
            profile.title,
            profile.version,
            # A server without a description is described by its name, which is on the page already.
            description if description not in (profile.title, profile.short_name) else "",
            has_api=api is not None,
            links=tuple((noun, url) for noun, url in links if 0 < len(url) <= MAX_LINK),
        )
        return request, PageReply(mcp, about, address, everywhere, kept)

    return PageContent(OFFER, make_list_request, partial(render_page, unlisted, everywhere=everywhere), headers(), api)


class PageReply:
    """The reply to `tools/list`, as a page. If the list is refused, the page has none.

    `kept` holds pages by their address, list and counts, so that a long list is not read for every browser.
    """

    kind = HTML_CONTENT_TYPE
    later = None

    def __init__(self, mcp: MCP, about: About, address: str, everywhere: bool, kept: ByteBoundedCache[bytes]) -> None:
        self._mcp, self._about, self._address, self._everywhere, self._kept = mcp, about, address, everywhere, kept

    @property
    def headers(self) -> HeaderList:
        return headers()

    def result(self, call: Call, result: Any) -> FinalReply:
        self._about = self._about._replace(others=self._count_others(call))
        if not isinstance(result, bytes):
            return self._render_list(result), None
        key = self._address, self._about.others, result
        if (made := self._kept.get(key)) is None:
            made = self._render_list(from_json(result))
            self._kept.store_value(key, made, len(made) + len(result))
        return made, None

    def _count_others(self, call: Call) -> tuple[tuple[str, int], ...]:
        """How many resources, templates and prompts this caller sees, unless the author has a word in their lists."""
        composition, mcp = call.session.composition, self._mcp
        listed = (
            ("resource", "resources/list", mcp.resources.concrete),
            ("resource template", "resources/templates/list", mcp.resources.templates),
            ("prompt", "prompts/list", mcp.prompts.registry),
        )
        counted = (
            (noun, sum(composition.visible(call, item) for item in registry))
            for noun, method, registry in listed
            if not composition.has_author_wrapper(method)
        )
        return tuple((noun, count) for noun, count in counted if count)

    def failure(self, call: Call, error: Params) -> FinalReply:
        return self._page(self._about._replace(unlisted=REFUSED)), None

    def _render_list(self, found: Any) -> bytes:
        tools = [tool for tool in found["tools"] if is_object(tool)]
        return self._page(self._about._replace(tools=tools, is_complete="nextCursor" not in found))

    def _page(self, about: About) -> bytes:
        return render_page(about, self._address, everywhere=self._everywhere)


# -- The HTML of the page. Whatever the author or a mounted server wrote is text: escaped, shortened, on one line.


MAX_PAGE_BYTES: Final = 16_000

# Of what is said about the clients together: an address may be long, and is in each of them.
MAX_CLIENTS_BYTES: Final = 3_000

# Of one text, in characters. In bytes it is at most twice that.
MAX_NAME, MAX_VERSION, MAX_LEAD, MAX_LINE, MAX_LINK = 64, 32, 240, 160, 300
MAX_PARAMETERS: Final = 12
# The keywords that `describe_type` reads.
DESCRIBED: Final = frozenset({"type", "enum", "const", "anyOf", "oneOf", "$ref"})

# A shape for each mark, so that colour is not all that tells them apart.
SHAPES: Final[Mapping[str, str]] = {
    "safe": '<circle cx="8" cy="8" r="5"/><path d="m5.7 8.2 1.6 1.6 3-3.3"/>',
    "moderate": '<path d="M8 2.8 14 13.2H2zM8 6.8v3M8 11.5v.1"/>',
    "dangerous": '<path d="M5.6 2.3h4.8l3.3 3.3v4.8l-3.3 3.3H5.6l-3.3-3.3V5.6zM8 5v3.8M8 10.9v.1"/>',
    "unmarked": '<circle cx="8" cy="8" r="5" stroke-dasharray="2 2.5"/>',
}
COPY_BUTTON_HTML: Final = "<button hidden>Copy</button>"
CONNECT: Final = "This address is for MCP clients. Here is how to connect yours."


class About(NamedTuple):
    """What the page says of a server. If it says nothing of the tools, `unlisted` is why, and `sign_in` how to get in.

    `others` counts what else it lists, by its noun. `links` lead to its website and its repository.
    """

    name: str
    title: str = ""
    version: str = ""
    description: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    is_complete: bool = True
    unlisted: str = ""
    sign_in: str = ""
    others: tuple[tuple[str, int], ...] = ()
    has_api: bool = False
    links: tuple[tuple[str, str], ...] = ()


def render_page(about: About, address: str, *, everywhere: bool) -> bytes:
    """The page. It has as many tools as fit, and the parameters of as many as then fit."""
    before, after = _begin(about, address), _end(about, address, everywhere=everywhere)

    def render(tools: str) -> bytes:
        title = f"{escape_line(about.title or about.name, MAX_NAME)}, an MCP server"
        return render_html_page(title, before + tools + after, script=read_page_script())

    return render(_tools(about, MAX_PAGE_BYTES - len(render(""))))


@cache
def headers() -> HeaderList:
    """A policy that allows this page's own style and script and nothing else, and the page in no frame and no cache."""
    made = make_html_headers(script=read_page_script())
    return tuple((name.encode(), value.encode()) for name, value in made)


@cache
def read_page_script() -> str:
    """What makes Copy buttons work, on the pages that have some."""
    return Path(__file__).with_name("page.js").read_text(encoding="utf-8").strip()


def escape_line(given: Any, most: int) -> str:
    """A text on one line, without characters that hide or reorder others, escaped."""
    text = " ".join(str(given or "")[: 4 * most].split())
    for place, _ in reversed(list(iter_hidden_character_notes(text))):
        text = text[:place] + text[place + 1 :]
    shown, cut = escape(text), most
    while len(text) > cut or len(shown.encode()) > 2 * most:
        cut = min(cut, len(text)) - 1
        text = text[:cut].rstrip()
        shown = escape(text) + "…"
    return shown


def _begin(about: About, address: str) -> str:
    name = escape_line(about.title or about.name, MAX_NAME)
    version = f" <small>{escape_line(about.version, MAX_VERSION)}</small>" if about.version else ""
    lead = f"<p class=lead>{said}</p>" if (said := escape_line(about.description, MAX_LEAD)) else ""
    known = (_client(one, is_open=not place) for place, one in enumerate(client_steps(about.name, address)))
    clients = "".join(_fitting(known, MAX_CLIENTS_BYTES))
    shapes = "".join(f'<symbol id="{mark}" viewBox="0 0 16 16">{shape}</symbol>' for mark, shape in SHAPES.items())
    links = "".join(
        f'<a class=btn href="{escape(url)}">{title}</a>' for title, url in install_links(about.name, address)
    )
    return (
        f"<svg hidden>{shapes}</svg><h1>{name}{version}</h1>{lead}<p class=hint>{about.sign_in or CONNECT}</p>"
        f'<div class="copy address"><code>{escape(address)}</code>{COPY_BUTTON_HTML}</div><p class=acts>{links}</p>'
        f"<h2>Connect</h2><div class=list>{clients}</div>"
    )


def install_links(server: str, address: str) -> list[tuple[str, str]]:
    """Links that open an editor with this server filled in. The editor asks before it adds it."""
    name = make_server_name(server)
    cursor = quote(b64encode(json.dumps({"url": address}).encode()), safe="")
    vscode = quote(json.dumps({"name": name, "type": "http", "url": address}, separators=(",", ":")), safe="")
    return [
        ("Install in Cursor", f"cursor://anysphere.cursor-deeplink/mcp/install?name={name}&config={cursor}"),
        ("Install in VS Code", f"vscode:mcp/install?{vscode}"),
    ]


def _fitting(parts: Iterable[str], room: int) -> list[str]:
    """The first parts, as many as have room."""
    found: list[str] = []
    for part in parts:
        room -= len(part.encode())
        if room < 0:
            break
        found.append(part)
    return found


def _client(steps: ClientSteps, *, is_open: bool) -> str:
    title = f"<b>{escape(steps.title)}</b>"
    if not steps.text:
        return f"<details><summary>{title}</summary><p>{escape(steps.place)}</p></details>"
    return (
        f"<details{' open' if is_open else ''}><summary>{title} <span>{escape(steps.place)}</span></summary>"
        f"<div class=copy><pre>{escape(steps.text, quote=False)}</pre>{COPY_BUTTON_HTML}</div></details>"
    )


def _tools(about: About, room: int) -> str:
    """The list of tools, in at most `room` bytes."""
    if not about.tools:
        return f"<h2>Tools</h2><p class=end>{about.unlisted or 'There are none.'}</p>"
    used = set(map(mark_of, about.tools))
    legend = "".join(f"<span class={mark}>{_icon(mark, named=False)} {mark}</span>" for mark in SHAPES if mark in used)
    begin = f"<div class=tools><h2>Tools</h2><p>{legend}</p></div><ul class=list>"
    room -= len(f"{begin}</ul>") + len(_format_count(len(about.tools), len(about.tools), is_complete=False))
    rows = _fitting((f"<li>{_tool(tool)}" for tool in about.tools), room)
    room -= sum(len(row.encode()) for row in rows)
    for place, tool in enumerate(about.tools[: len(rows)]):
        opened = f"<li>{_opened_tool(tool)}"
        if (more := len(opened.encode()) - len(rows[place].encode())) <= room:
            rows[place], room = opened, room - more
    return f"{begin}{''.join(rows)}</ul>" + _format_count(len(rows), len(about.tools), is_complete=about.is_complete)


def _tool(tool: Mapping[str, Any], tag: str = "div") -> str:
    mark = mark_of(tool)
    first = str(tool.get("description") or tool.get("title") or "").strip().partition("\n\n")[0]
    return (
        f"<{tag} class=tool>{_icon(mark)}<code>{escape_line(tool.get('name'), 2 * MAX_NAME)}</code>"
        f"<span class=d>{escape_line(first, MAX_LINE)}</span></{tag}>"
    )


def _opened_tool(tool: Mapping[str, Any]) -> str:
    """A tool that opens to its parameters. One without any does not open."""
    rows = "".join(render_parameters(tool.get("inputSchema")))
    return f"<details>{_tool(tool, 'summary')}<dl class=params>{rows}</dl></details>" if rows else _tool(tool)


def render_parameters(schema: Any) -> Iterator[str]:
    """The properties of an object, each with its type and what it is for."""
    found: Mapping[str, Any] = schema if is_object(schema) else {}
    properties: Mapping[str, Any] = members if is_object(members := found.get("properties")) else {}
    required = read_required_names(found)
    for name, below in list(properties.items())[:MAX_PARAMETERS]:
        about = below.get("description") if is_object(below) else ""
        kind = escape_line(describe_type(below), MAX_NAME) + (", required" if name in required else "")
        said = escape_line(about, MAX_LINE)
        yield f"<dt><code>{escape_line(name, MAX_NAME)}</code><span>{kind}</span></dt><dd>{said}</dd>"
    if (more := len(properties) - MAX_PARAMETERS) > 0:
        yield f"<dt>{more} more</dt><dd></dd>"


def describe_type(schema: Any) -> str:
    """The values or types of a schema, in a few words."""
    known: Mapping[str, Any] = schema if is_object(schema) else {}
    if is_array(values := known.get("enum")):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values[:8])
    if "const" in known:
        return json.dumps(known["const"], ensure_ascii=False)
    if is_array(branches := known.get("anyOf") or known.get("oneOf")):
        return " | ".join(dict.fromkeys(describe_type(branch) for branch in branches[:8] if branch is not schema))
    if isinstance(reference := known.get("$ref"), str):
        return reference.rpartition("/")[2]
    kind = known.get("type")
    if kind == "array" and is_object(items := known.get("items")) and items.keys() & DESCRIBED:
        return f"list of {describe_type(items)}"
    return " | ".join(map(str, kind)) if is_array(kind) else str(kind or "anything")


def mark_of(tool: Mapping[str, Any]) -> str:
    """The mark that a listed tool carries for every client: safe, moderate, dangerous or unmarked."""
    meta = tool.get("_meta")
    security = meta.get(SECURITY_META_KEY) if is_object(meta) else None
    risk = security.get("risk_level") if is_object(security) else None
    return risk if isinstance(risk, str) and risk in SHAPES else "unmarked"


def _icon(mark: str, *, named: bool = True) -> str:
    """`named`: for who does not see it, the mark's name is read out."""
    told = f"role=img aria-label={mark}" if named else "aria-hidden=true"
    return f"<svg class={mark} {told}><use href=#{mark} /></svg>"


def _format_count(shown: int, all: int, *, is_complete: bool) -> str:
    if shown == all and is_complete:
        return ""
    return f"<p class=end>{shown} of {all}{'' if is_complete else ' or more'} are shown.</p>"


def _end(about: About, address: str, *, everywhere: bool) -> str:
    seen = "" if everywhere else " Only browsers on this machine see this page."
    counts = [f"{count:,} {noun}{'' if count == 1 else 's'}" for noun, count in about.others]
    others = " and ".join(filter(None, (", ".join(counts[:-1]), *counts[-1:])))
    told = f"<p class=end>It also has {others}.</p>" if others else ""
    api = f"<p class=end>Programs without MCP call its tools over HTTP: see {API}.</p>" if about.has_api else ""
    purpose, action, more = LOOK_INSIDE[about.sign_in]
    look = f"<code>defserve {action} {escape(shlex.quote(address))}{more}</code>"
    links = ", ".join(f'<a href="{escape(url)}" rel=noreferrer>{noun}</a>' for noun, url in about.links)
    more_about = f"<p class=end>More about it: {links}.</p>" if links else ""
    return (
        f"{told}{api}{more_about}"
        f"<p class=end>Speaks MCP {PROTOCOL_VERSIONS[0].name} to {PROTOCOL_VERSIONS[-1].name}.{seen} "
        f"To {purpose}, run {look}.</p>"
    )


# How to get in, as `About` says it → what for, the command, and what stands after the address.
LOOK_INSIDE: Final = {
    "": ("look inside", "inspect", ""),
    SIGN_IN[True]: ("sign in from a terminal", "login", ""),
    SIGN_IN[False]: ("look inside", "inspect", " --token @FILE"),
}


API: Final = "<a href=docs>the API</a>"


# -- How each known client is told of a server at an address: a command, an entry for its settings, or a sentence.


FIRST: Final = "claude-code"


class ClientSteps(NamedTuple):
    """What to do in one client. `text` is to be copied; without it, `place` says all there is to say."""

    title: str
    place: str
    text: str


def client_steps(server: str, address: str) -> list[ClientSteps]:
    """For every client of the install table, and for the command line."""
    name = make_server_name(server)
    known = sorted(KNOWN_CLIENTS, key=lambda one: one != FIRST)
    return [
        *(_steps(KNOWN_CLIENTS[one], name, address) for one in known),
        ClientSteps("Command line", "defserve", f"defserve list {shlex.quote(address)}"),
    ]


def _steps(client: ClientApp, name: str, address: str) -> ClientSteps:
    if client.adds:
        return ClientSteps(client.title, "one command", client.adds.format(name=name, url=shlex.quote(address)))
    try:
        entry = client.entry(LaunchCommand(url=address))
    except UsageError as error:
        return ClientSteps(client.title, f"{error.problem}; {error.fix}.", "")
    return ClientSteps(client.title, _place(client), _format_entry(client, name, entry))


def _place(client: ClientApp) -> str:
    """Its settings file, as seen from a project; of a user's own file only the name, because this page may travel."""
    if "project" in client.paths:
        place = PurePath(client.paths["project"]()).as_posix()
        return place if place != client.title else "of a project"
    return client.paths["user"]().name


def _format_entry(client: ClientApp, name: str, entry: dict[str, Any]) -> str:
    if client.format == "toml":
        # The names and values here are such that JSON's strings are also TOML's.
        return "\n".join([f"[{client.key}.{name}]", *(f"{key} = {json.dumps(entry[key])}" for key in entry)])
    return json.dumps({client.key: {name: entry}})
