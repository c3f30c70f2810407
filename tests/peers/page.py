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
# Compatibility: which clients work

Which clients, hosts, bridges and servers work with defserve? `make peers` tries every feature with the real program.
It also writes this page (`make peers ARGS=--write`). All of them talk over loopback only.

Last run: {day}, defserve {version}, {system}, Python {python}. **macOS and Windows: untested.**

| Cell | Meaning |
|---|---|
| yes | it works |
| [1] | it does not work, and the fault is the peer's: see the note |
| *failed* | it should work and does not |
| – | not tried: the peer does not have it, it makes no sense there, or it needs an account (as Claude Code does) |
"""
_ROLES = {
    "client": ("Clients", "The peer is the client. defserve serves."),
    "host": ("Hosts and agent frameworks", "The same, by the client that the host has built in."),
    "bridge": ("Bridges", "The client of defserve on one side, its server on the other, the bridge in between."),
    "sign-in": (
        "Signing in",
        "The peer signs a user in, and calls as that user. The issuer is npm's `oidc-provider`; the server takes its "
        "tokens by `OIDC`, or stands in front of it as `OAuthProxy`. Claude Code only connects, and its document at "
        "claude.ai is stood in for by a copy, because nothing reaches the network.",
    ),
    "server": ("Servers", "The peer is the server. The client of defserve calls it."),
    "kernel": (
        "Through a kernel",
        "The peer is the client of one `defserve kernel`, which has the shop behind it, and, each with a prefix, the "
        "everything, filesystem, memory, git and time servers, one of FastMCP 4.x and one of the official Python SDK "
        "1.x. A cell says yes if every server that has the feature does it "
        "([`tests/peers/tours.py`](../tests/peers/tours.py)).",
    ),
}
# Each a column; what belongs together is one.
_COLUMNS = {
    "connect": ("connect", "version", "health"),
    "list": ("list", "lists", "lists all", "pages", "list changed"),
    "call": ("call", "answers", "each call"),
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
_SIGN_IN_COLUMNS = {"OIDC": ("sign in, issuer",), "OAuthProxy": ("sign in, proxy",)}
_ALL_COLUMNS = {**_COLUMNS, **_SIGN_IN_COLUMNS}
_HOW = """\
## How each feature is tried

The server is [`tests/peers/servers/shop.py`](../tests/peers/servers/shop.py). A cell says yes if all of this is so:

| feature | the peer |
|---|---|
"""
_CAVEAT = """
If the official TypeScript client reads a result together with progress, it handles the result first. So the server
sends such a result a millisecond later. On a busy machine the client may still read both at once, so it has ten tries.
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
