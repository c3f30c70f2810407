"""Nobody takes a right by asking for it: scopes, redirects, metrics; and nobody deletes what is of others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from defserve.auth.proxy.clients import RedirectRule
from defserve.tooling.packaging import package
from defserve.tooling.packaging.project_documents import read_project
from tests.attack import keys
from tests.attack.arena import Kind
from tests.attack.controls.rules import (
    delete_by_prefix,
    grant_what_is_asked_for,
    show_metrics_to_every_key,
    take_any_scheme,
    take_any_slash,
)
from tests.attack.speaking.http import request
from tests.attack.trial import Control, Family, Trial
from tests.auth.proxied import call, visiting
from tests.serve.http.test_paths import SPELLINGS
from tests.tooling.packaging.projects import write_project

FAMILY = Family("sign-in rules")
ADMIN = "notes:write"


# -- scopes ----------------------------------------------------------------------------------------------


async def take_scope(how: str) -> str:
    """Whether somebody gets a scope that the author's rule gives to nobody."""
    async with visiting(scopes=["read"], optional_scopes=[ADMIN, "more"], scopes_for=lambda claims: ()) as visit:
        if how == "registered":
            await visit.register(scope=f"read {ADMIN}")
        asked = {"twice": f"{ADMIN} {ADMIN}", "registered": ADMIN, "with others": f"read {ADMIN} more"}.get(how, ADMIN)
        tokens = await visit.tokens(**({} if how == "at a refresh" else {"scope": asked}))
        if how in ("at a refresh", "kept at a refresh"):
            more = {"scope": f"read {ADMIN}"} if how == "at a refresh" else {}
            answer = (await visit.refresh(tokens["refresh_token"], **more)).json()
            tokens = answer if "access_token" in answer else tokens
        got = await call(visit.http, tokens["access_token"], "write")
        if ADMIN in tokens.get("scope", "").split() or got.status_code == 200:
            return f"the token has {tokens.get('scope')!r}; the tool behind it answers {got.status_code}"
        return ""


@FAMILY.attack("scopes that nobody gave", Control(grant_what_is_asked_for, "the token has", "asked for", here=True))
def _(trial: Trial) -> None:
    ways = ("asked for", "twice", "with others", "registered", "at a refresh", "kept at a refresh")
    for how, _ in trial.choose(dict.fromkeys(ways)):
        trial.expect(not (said := asyncio.run(take_scope(how))), f"{how}: {said}")


# -- redirects -------------------------------------------------------------------------------------------

SCHEMES = """
javascript data vbscript file blob about intent android-app market microsoft-edge googlechrome googlechromes
x-safari-https firefox opera brave ms-appinstaller search-ms ms-settings ms-word ms-excel smb ftp sftp ssh telnet
ldap gopher jar view-source chrome chrome-extension moz-extension tel sms mailto facetime itms-services steam skype
zoommtg slack tg whatsapp discord evilapp myapp app x com web+evil shell cmd powershell
""".split()
TAILS = ("//cb", "///cb", "/cb", "//evil.example/cb", "https://evil.example", "//a/?url=https://evil.example")
ODD = [
    *("http://evil.example/cb", "HTTP://127.0.0.1.evil.example/cb", "http://localhost.evil.example/cb", "https:///cb"),
    *("https://u@evil.example/cb", "https://evil.example/#x", "//evil.example/cb", "/cb", "", "cb", "com.evil.app:cb"),
    *("JavaScript:alert(1)", "java\tscript:alert(1)", " https://a.example/cb", "https://a.example/c b", "cursor:evil"),
]


async def register(uri: str) -> int:
    async with visiting() as visit:
        return (await visit.register(redirect_uris=[uri])).status_code


@FAMILY.attack("redirects to whatever opens", Control(take_any_scheme, "may be registered", "evilapp*", here=True))
def _(trial: Trial) -> None:
    rule = RedirectRule()
    cases = {f"{scheme}:{tail}": f"{scheme}:{tail}" for scheme in SCHEMES for tail in TAILS}
    for uri, _ in trial.choose({**cases, **{odd: odd for odd in ODD}}):
        trial.expect(not rule.is_allowed_redirect(uri), f"{uri!r} may be registered")
    for uri in ("evilapp://cb", "microsoft-edge://evil.example", "javascript://%0aalert(1)"):
        trial.expect(asyncio.run(register(uri)) != 201, f"{uri!r} may be registered at /register")
    for uri in ("com.example.app:/cb", "cursor://anysphere/cb", "http://127.0.0.1:1/cb", "https://a.example/cb"):
        trial.expect(rule.is_allowed_redirect(uri), f"{uri!r}, an honest one, is refused")


# -- metrics ---------------------------------------------------------------------------------------------

WITHOUT_THE_RIGHT = {
    "none": (),
    "calls one tool": ("ToolInvoke(echo)",),
    "lists all": ("ToolsListAll",),
    "reads all": ("ToolRead(*)",),
    "writes as admin": ("AdminWrite",),
}
NAMES = "defserve_"
"""What each line of the metrics begins with."""


def told(trial: Trial, path: str, token: str | None) -> tuple[int | None, bool]:
    """The status of a path, and whether the metrics came."""
    served = trial.arena.serve(Kind("keyed", ("--metrics", "--rest")))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    response = request(served.place, "GET", path, {"Accept": "*/*", **headers})
    return (None, False) if response is None else (response.status, NAMES in response.text)


@FAMILY.attack("metrics without the right", Control(show_metrics_to_every_key, "shows the metrics", "lists all"))
def _(trial: Trial) -> None:
    served = trial.arena.serve(Kind("keyed", ("--metrics", "--rest")))
    for name, permissions in trial.choose(WITHOUT_THE_RIGHT):
        key = keys.create(served, "ada", *permissions)
        for path in ("/metrics", "/metrics?x=1"):
            status, has_come = told(trial, path, key.token)
            trial.expect(status == 403 and not has_come, f"{name}: {path} shows the metrics: {status}")
    for token in (None, "x" * 43):
        status, has_come = told(trial, "/metrics", token)
        trial.expect(status == 401 and not has_come, f"{token}: shows the metrics: {status}")
    reader = keys.create(served, "prometheus", "MetricsRead")
    status, has_come = told(trial, "/metrics", reader.token)
    trial.expect(status == 200 and has_come, f"who has the right gets {status}")


@FAMILY.attack("other spellings of /metrics", Control(take_any_slash, "shows the metrics", "{path}/"))
def _(trial: Trial) -> None:
    """A proxy in front denies /metrics. Whoever has the right to them must not get them by another spelling."""
    served = trial.arena.serve(Kind("keyed", ("--metrics", "--rest")))
    reader = keys.create(served, "prometheus", "MetricsRead")
    more = (
        "/Metrics",
        "/METRICS",
        "/metrics%2e",
        "/mcp/..{path}",
        "{path}\\",
        "/m%65trics/",
    )
    for spelling, _ in trial.choose(dict.fromkeys((*SPELLINGS, *more))):
        path = spelling.format(path="/metrics")
        status, has_come = told(trial, path, reader.token)
        trial.expect(not has_come, f"{path} shows the metrics: {status}")


# -- packages --------------------------------------------------------------------------------------------


@FAMILY.attack("files of other projects", Control(delete_by_prefix, "would be deleted", here=True))
def _(trial: Trial) -> None:
    """Before a build, older builds of a project are deleted from a folder that others may share."""
    place = Path(mkdtemp(prefix="shared-", dir=trial.arena.folder))
    own = read_project(write_project(place / "weather-mcp"))
    name, out = own.name.replace("-", "_"), place / "out"
    out.mkdir()
    others = [
        *(f"{name}_{more}-1.0-py3-none-any.whl" for more in ("extra", "2", "x", "1.0")),
        *(f"{own.name}-{more}-1.0.tar.gz" for more in ("extra", "2", "x")),
        *(f"{name}_{more}-1.0.tar.gz" for more in ("extra", "server")),
        *(f"{name}-notes.tar.gz", f"{name}-1.0.mcpb", f"{name}.whl", f"{name}-1.0.zip", f"{name}-latest.tar.gz"),
        *(f"x{name}-1.0.tar.gz", f"{name}-1.0-x-py3-none-any.whl", f"{name}-1.0.tar.gz.asc", "requirements.txt"),
    ]
    mine = [f"{name}-0.0.1-py3-none-any.whl", f"{name}-0.0.1.tar.gz"]
    for file in (*others, *mine):
        (out / file).write_bytes(b"")
    found: list[Any] = [path.name for path in package.find_built(own, out)]
    for file in others:
        trial.expect(file not in found, f"{file} would be deleted")
    trial.expect(sorted(found) == sorted(mine), f"of its own files it finds {found}")
