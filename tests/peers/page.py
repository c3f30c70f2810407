"""The page `docs/compatibility.md`, made of what a run of all peers found."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import date

from defserve.base.version import VERSION
from tests.conformance.suite_install import ROOT
from tests.peers.features import FEATURES
from tests.peers.peer import Peer
from tests.peers.trial import Outcome

PAGE = ROOT / "docs" / "compatibility.md"
_INTRO = """\
# Compatibility: which clients are supported

Which clients work with defserve? This page lists the MCP clients, agent frameworks, bridges and servers
that we tested, feature by feature.

`make peers` runs the real programs over loopback, and `make peers ARGS=--write` writes this page. They all speak MCP;
for MGP, MCPL and MCPx see [protocols](protocols.md).

Last run: {day}, defserve {version}, {system}, Python {python}. **macOS and Windows: untested.**

| Cell | Meaning |
|---|---|
| yes | it works |
| [1] | it doesn't work because of the peer: see the note |
| *failed* | it should work but doesn't |
| – | not tested: the peer doesn't have the feature, it doesn't apply, or it needs an account (as for Claude Code) |
"""
_ROLES = {
    "client": ("Clients", "The peer is the client, and defserve is the server."),
    "host": ("Hosts and agent frameworks", "The same, with the client that is built into the host."),
    "bridge": ("Bridges", "The bridge connects a defserve client to a defserve server."),
    "sign-in": (
        "Signing in",
        "The peer signs a user in with OAuth and calls tools as that user. The identity provider is npm's "
        "`oidc-provider`. The server uses `OIDC`, or `OAuthProxy` in front of the provider. Claude Code only connects, "
        "and gets a copy of its document at claude.ai, because the tests have no network. In the last three columns "
        "there's no browser: the client shows a secret, a signature or an identity assertion of a company, whose "
        "provider is made of Authlib ([how to set it up](company-sign-in.md)).",
    ),
    "server": ("Servers", "The peer is the server, and defserve's client calls it."),
    "kernel": (
        "Through a kernel",
        "The peer is the client of a `defserve kernel` with eight servers: our test server, the everything, "
        "filesystem, memory, git and time servers, one with FastMCP 4.x and one with the official Python SDK 1.x. "
        "A cell says yes if the feature works with every server that has it "
        "([`tests/peers/tours.py`](../tests/peers/tours.py)).",
    ),
}
# Each a column; what belongs together is one.
_COLUMNS = {
    "connect": ("connect", "version", "health"),
    "list": ("list", "lists", "lists all", "pages", "list changed"),
    "call": ("call", "no parameters", "recursive", "answers", "each call"),
    "structured": ("structured", "structured list", "structured none", "formats", "values", "several servers"),
    "errors": ("errors",),
    "progress": ("progress", "progress ×200", "each progress"),
    "logs": ("logs",),
    "cancellation": ("cancellation",),
    "resources": ("resources", "templates", "each resource"),
    "subscriptions": ("subscriptions",),
    "prompts": ("prompts", "each prompt"),
    "completion": ("completion",),
    "elicitation": ("elicitation", "each elicitation"),
    "sampling": ("sampling", "each sampling"),
    "roots": ("roots",),
    "resumption": ("resumption",),
    "token": ("auth", "no token"),
}
_SIGN_IN_COLUMNS = {
    "OIDC": ("sign in, issuer",),
    "OAuthProxy": ("sign in, proxy",),
    "secret": ("client secret",),
    "signature": ("client signature",),
    "ID-JAG": ("identity assertion",),
}
_ALL_COLUMNS = {**_COLUMNS, **_SIGN_IN_COLUMNS}
_HOW = """\
## How each feature is tested

The server is [`tests/peers/servers/shop.py`](../tests/peers/servers/shop.py). A cell says yes if the peer does this:

| feature | the peer |
|---|---|
"""
_CAVEAT = """
If the official TypeScript client reads a result together with progress, it handles the result first. So the server
sends such a result a millisecond later. On a busy machine this may still fail, so the test is tried ten times.
"""


def page(peers: Sequence[Peer], outcomes: Sequence[Outcome], absent: Mapping[str, str], day: date) -> str:
    """The whole page. `absent` names the peers that could not be installed, and why."""
    notes: list[str] = []
    system = f"{platform.system()} {platform.machine()}"
    parts = [_INTRO.format(day=day, version=VERSION, system=system, python=platform.python_version())]
    for role, (title, text) in _ROLES.items():
        rows = [_row(outcome, notes) for outcome in outcomes if outcome.peer.role == role]
        missing = [
            f"Not installed: {p.name} {p.package.version}: {absent[p.name]}"
            for p in peers
            if p.name in absent and p.role == role
        ]
        columns = _columns_of(role)
        head = [
            "| peer | release | over |" + "".join(f" {name} |" for name in columns),
            "|---" * (3 + len(columns)) + "|",
        ]
        parts.append("\n".join([f"## {title}\n", f"{text}\n", *head, *rows, *(f"\n{line}" for line in missing)]) + "\n")
    if notes:
        parts.append("## Notes\n\n" + "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1)) + "\n")
    parts.append(_HOW + "".join(f"| {feature.name} | {feature.how} |\n" for feature in FEATURES.values()) + _CAVEAT)
    return "\n".join(parts)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """For a terminal: a line for each peer and way, a mark for each column."""
    width = max((len(f"{o.peer.name} {o.way}") for o in outcomes), default=0)
    lines = [" " * width + "  " + " ".join(_ALL_COLUMNS)]
    for outcome in outcomes:
        cells = [_cell(outcome, features, []) for features in _ALL_COLUMNS.values()]
        marks = [("FAIL" if c == "*failed*" else "ok" if c == "yes" else "-" if c == "–" else "fault") for c in cells]
        columns = " ".join(mark.center(len(name)) for mark, name in zip(marks, _ALL_COLUMNS, strict=True))
        lines.append(f"{outcome.peer.name} {outcome.way}".ljust(width) + "  " + columns.rstrip())
    return lines


def _columns_of(role: str) -> Mapping[str, Sequence[str]]:
    return _SIGN_IN_COLUMNS if role == "sign-in" else _COLUMNS


def _row(outcome: Outcome, notes: list[str]) -> str:
    peer = outcome.peer
    cells = [_cell(outcome, features, notes) for features in _columns_of(peer.role).values()]
    return f"| {peer.name} | {peer.package.version} | {outcome.way} |" + "".join(f" {cell} |" for cell in cells)


def _cell(outcome: Outcome, features: Sequence[str], notes: list[str]) -> str:
    tried = {name: outcome.features[name] for name in features if name in outcome.features}
    if not tried:
        return "–"
    marks: list[str] = []
    for name, said in tried.items():
        if said == "ok":
            continue
        fault = outcome.peer.fault(outcome.way, name)
        if not fault:
            return "*failed*"
        note = f"{outcome.peer.name}: {fault.what} Found out by: {fault.proof}"
        if note not in notes:
            notes.append(note)
        marks.append(f"[{notes.index(note) + 1}]")
    works = ["yes"] if len(marks) < len(tried) else []
    return " ".join(dict.fromkeys([*works, *marks]))
