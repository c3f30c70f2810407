"""The HTML of the page. Whatever the author or a mounted server wrote is text: escaped, shortened, on one line."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.guard.text import hidden
from defserve.protocols.mcp.versions import TABLE
from defserve.protocols.mgp.agreed import SECURITY_KEY
from defserve.serving.page.connecting import ClientSteps, client_steps
from defserve.transports.asgi import HeaderList
from defserve.wire.jsonvalue import is_object

MOST_BYTES: Final = 10_000
# Of what is said about the clients together: an address may be long, and is in each of them.
MOST_BYTES_OF_CLIENTS: Final = 3_000
# Of one text, in characters. In bytes it is at most twice that.
NAME, VERSION, LEAD, LINE = 64, 32, 240, 160

# A shape for each mark, so that colour is not all that tells them apart.
SHAPES: Final[Mapping[str, str]] = {
    "safe": '<circle cx="8" cy="8" r="5"/><path d="m5.7 8.2 1.6 1.6 3-3.3"/>',
    "moderate": '<path d="M8 2.8 14 13.2H2zM8 6.8v3M8 11.5v.1"/>',
    "dangerous": '<path d="M5.6 2.3h4.8l3.3 3.3v4.8l-3.3 3.3H5.6l-3.3-3.3V5.6zM8 5v3.8M8 10.9v.1"/>',
    "unmarked": '<circle cx="8" cy="8" r="5" stroke-dasharray="2 2.5"/>',
}
COPY: Final = "<button hidden>Copy</button>"
CONNECT: Final = "This address is for MCP clients; here is how to connect one."


class About(NamedTuple):
    """What the page says of a server. If it says nothing of the tools, `unlisted` is why."""

    name: str
    title: str = ""
    version: str = ""
    description: str = ""
    tools: Sequence[Mapping[str, Any]] = ()
    is_complete: bool = True
    unlisted: str = ""


def page(about: About, address: str, *, everywhere: bool) -> bytes:
    """The page. It has as many tools as fit."""
    before = _begin(about, address)
    after = _end(address, everywhere=everywhere)
    room = MOST_BYTES - len(before.encode()) - len(after.encode())
    return (before + _tools(about, room) + after).encode()


@cache
def headers() -> HeaderList:
    """A policy that allows this page's own style and script and nothing else, and the page in no frame and no cache."""
    script, style = (f"'sha256-{b64encode(sha256(_file(name).encode()).digest()).decode()}'" for name in FILES)
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cache-control", b"no-store"),
        (b"vary", b"Accept"),
    )


FILES: Final = ("page.js", "page.css")


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8").strip()


def _text(given: Any, most: int) -> str:
    """A text on one line, without characters that hide or reorder others, escaped."""
    text = " ".join(str(given or "")[: 4 * most].split())
    for place, _ in reversed(list(hidden(text))):
        text = text[:place] + text[place + 1 :]
    shown, cut = escape(text), most
    while len(text) > cut or len(shown.encode()) > 2 * most:
        cut = min(cut, len(text)) - 1
        text = text[:cut].rstrip()
        shown = escape(text) + "…"
    return shown


def _begin(about: About, address: str) -> str:
    name = _text(about.title or about.name, NAME)
    version = f" <small>{_text(about.version, VERSION)}</small>" if about.version else ""
    lead = " ".join(filter(None, (_text(about.description, LEAD), CONNECT)))
    known = (_client(one, is_open=not place) for place, one in enumerate(client_steps(about.name, address)))
    clients = "".join(_fitting(known, MOST_BYTES_OF_CLIENTS))
    shapes = "".join(f'<symbol id="{mark}" viewBox="0 0 16 16">{shape}</symbol>' for mark, shape in SHAPES.items())
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="robots" content="noindex">'
        f'<title>{name}, an MCP server</title><link rel="icon" href="data:,"><style>{_file("page.css")}</style>'
        f"<svg hidden>{shapes}</svg><main><h1>{name}{version}</h1><p class=lead>{lead}</p>"
        f'<div class="copy address"><code>{escape(address)}</code>{COPY}</div>'
        f"<h2>Connect</h2><div class=list>{clients}</div>"
    )


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
        f"<div class=copy><pre>{escape(steps.text, quote=False)}</pre>{COPY}</div></details>"
    )


def _tools(about: About, room: int) -> str:
    """The list of tools, in at most `room` bytes."""
    if not about.tools:
        return f"<h2>Tools</h2><p class=end>{about.unlisted or 'There are none.'}</p>"
    used = set(map(mark_of, about.tools))
    legend = "".join(f"<span class={mark}>{_icon(mark, named=False)} {mark}</span>" for mark in SHAPES if mark in used)
    begin = f"<div class=tools><h2>Tools</h2><p>{legend}</p></div><ul class=list>"
    room -= len(f"{begin}</ul>") + len(_counted(len(about.tools), len(about.tools), is_complete=False))
    rows = _fitting(map(_tool, about.tools), room)
    return f"{begin}{''.join(rows)}</ul>" + _counted(len(rows), len(about.tools), is_complete=about.is_complete)


def _tool(tool: Mapping[str, Any]) -> str:
    mark = mark_of(tool)
    first = str(tool.get("description") or tool.get("title") or "").strip().partition("\n\n")[0]
    # HTML lets the ends of these elements be left out, which is room for more of them.
    return f"<li>{_icon(mark)}<code>{_text(tool.get('name'), 2 * NAME)}</code><p>{_text(first, LINE)}"


def mark_of(tool: Mapping[str, Any]) -> str:
    """The mark that a listed tool carries for every client: safe, moderate, dangerous or unmarked."""
    meta = tool.get("_meta")
    security = meta.get(SECURITY_KEY) if is_object(meta) else None
    risk = security.get("risk_level") if is_object(security) else None
    return risk if isinstance(risk, str) and risk in SHAPES else "unmarked"


def _icon(mark: str, *, named: bool = True) -> str:
    """`named`: for who does not see it, the mark's name is read out."""
    told = f"role=img aria-label={mark}" if named else "aria-hidden=true"
    return f"<svg class={mark} {told}><use href=#{mark} /></svg>"


def _counted(shown: int, all: int, *, is_complete: bool) -> str:
    if shown == all and is_complete:
        return ""
    return f"<p class=end>{shown} of {all}{'' if is_complete else ' or more'} are shown.</p>"


def _end(address: str, *, everywhere: bool) -> str:
    seen = "" if everywhere else " Only browsers on this machine see this page."
    look = f"<code>defserve inspect {escape(shlex.quote(address))}</code>"
    return (
        f"<p class=end>Speaks MCP {TABLE[0].name} to {TABLE[-1].name}.{seen} To look inside, run {look}.</p></main>"
        f"<script>{_file('page.js')}</script></html>\n"
    )
