"""The pages that a user sees: the question, and what went wrong. They load nothing and run no script."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from typing import Final

from defserve.auth.proxy.clients.client import OAuthClient
from defserve.auth.proxy.clients.redirects import target
from defserve.auth.proxy.requests import AuthorizationRequest
from defserve.auth.site import SiteAnswer

_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:4rem auto;padding:0 1rem;color:#222}"
    "h1{font-size:1.3rem}dt{color:#666;font-size:.85rem;margin-top:.7rem}dd{margin:0;overflow-wrap:anywhere}"
    "button{font:inherit;padding:.5rem 1.4rem;margin:1.4rem .6rem 0 0;border-radius:.4rem;border:1px solid #888}"
    ".yes{background:#1a5fb4;border-color:#1a5fb4;color:#fff}.note{color:#666;font-size:.85rem}"
)
_POLICY: Final = (
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    f"style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
)
HEADERS: Final = (
    ("content-type", "text/html; charset=utf-8"),
    ("content-security-policy", _POLICY),
    ("x-frame-options", "DENY"),
    ("x-content-type-options", "nosniff"),
    # Nothing for other sites. With `no-referrer`, browsers would call the origin of our own form `null`.
    ("referrer-policy", "same-origin"),
    ("cache-control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Question:
    """What the user is asked: whether this client may sign in to this server, through this vendor.

    `optional` are the scopes that not every user has: who signs in is known only afterwards.
    """

    client: OAuthClient
    request: AuthorizationRequest
    vendor: str
    sealed: str
    may_remember: bool
    optional: Collection[str] = ()


def consent_page(question: Question, action: str, cookies: Sequence[tuple[str, str]]) -> SiteAnswer:
    """The page that asks the user. Nothing that a client says of itself can be taken for our own words."""
    client, request = question.client, question.request
    always = [scope for scope in request.scopes if scope not in question.optional]
    optional = [scope for scope in request.scopes if scope in question.optional]
    name = f"<strong><bdi>{escape(client.name)}</bdi></strong>" if client.name else "A client without a name"
    rows = [
        ("Server", escape(request.resource)),
        ("The client calls itself", name),
        ("The client's address", escape(client.document) if client.document else "none: anyone can use any name"),
        ("It receives your access at", f"<strong>{escape(target(request.redirect))}</strong>"),
        ("It gets", escape(", ".join(always)) or "access to this server"),
    ]
    if optional:
        rows.append(("It also gets, if this server gives it to your account", escape(", ".join(optional))))
    listed = "".join(f"<dt>{about}</dt><dd>{text}</dd>" for about, text in rows)
    remember = (
        '<p><label><input type="checkbox" name="remember" value="yes"> Do not ask again for this client in this '
        "browser</label></p>"
    )
    form = (
        f'<form method="post" action="{escape(action)}"><input type="hidden" name="request" value="{question.sealed}">'
        f"{remember if question.may_remember else ''}"
        '<button class="yes" name="decision" value="allow">Allow</button>'
        '<button name="decision" value="refuse">Refuse</button></form>'
    )
    note = f'<p class="note">You go on to {escape(question.vendor)} to sign in. Allow only what you have started.</p>'
    return _page(200, "Allow this client?", f"<dl>{listed}</dl>{form}{note}", cookies)


def leaving_page(url: str, cookies: Sequence[tuple[str, str]] = ()) -> SiteAnswer:
    """Sends the browser on. Not by a redirect: browsers apply `form-action` to every address that a form leads to."""
    go = f'<meta http-equiv="refresh" content="0;url={escape(url)}">'
    return _page(200, "One moment", f'<p><a href="{escape(url)}">Go on</a></p>', cookies, go)


def refusal_page(text: str, status: int = 400) -> SiteAnswer:
    return _page(status, "This sign-in cannot go on", f"<p>{escape(text)}</p>", ())


def problem_page(text: str, url: str) -> SiteAnswer:
    """Says what is wrong with a client's request, which the user can take back to the client.

    Nobody is sent there at once: anybody can register any address, and make a link to this server that leads to it.
    """
    link = f'<p><a href="{escape(url)}">Go back to {escape(target(url))}</a></p>'
    return _page(400, "This sign-in cannot go on", f"<p>{escape(text)}</p>{link}", ())


def _page(status: int, title: str, body: str, cookies: Sequence[tuple[str, str]], head: str = "") -> SiteAnswer:
    html = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>{head}'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{body}</body></html>"
    )
    return SiteAnswer(status, html.encode(), [*HEADERS, *cookies])
