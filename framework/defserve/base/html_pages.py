"""Pages that a server shows to a person in a browser: one style, both colour schemes, and a policy without gaps.

A page loads nothing, and no other site can frame it. Whoever makes one escapes what others wrote.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Final

HtmlHeaders = tuple[tuple[str, str], ...]

# What a browser is told if a request fails → the heading.
ERROR_HEADINGS: Final = {
    400: "This request cannot be read",
    401: "You need a token here",
    403: "You may not do this",
    404: "There is nothing here",
    405: "This address is not for browsers",
    406: "There is no page here",
    421: "This is another server",
    429: "Too many attempts",
    503: "The server is busy",
}


def render_html_page(title: str, main: str, *, head: str = "", script: str = "") -> bytes:
    """A page. `title` and `main` are HTML: escaped by who wrote them."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="robots" content="noindex">'
        f"<title>{title}</title><link rel=icon href=data:,>{head}<style>{_style()}</style>"
        f"<main>{main}</main>{f'<script>{script}</script>' if script else ''}</html>\n"
    ).encode()


@cache
def make_html_headers(
    *, script: str = "", form_action: str = "'none'", referrer: str = "no-referrer", opener: str = "same-origin"
) -> HtmlHeaders:
    """The headers of such a page: its own style, and its own script if it has one. It is in no frame and no cache.

    With `opener`, a page in a window that another site has opened can leave the two windows connected.
    """
    scripts = f"script-src {_hash(script)}; " if script else ""
    policy = (
        f"default-src 'none'; {scripts}style-src {_hash(_style())}; img-src data:;"
        f" base-uri 'none'; form-action {form_action}; frame-ancestors 'none'"
    )
    return (
        ("content-security-policy", policy),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", referrer),
        ("cross-origin-opener-policy", opener),
        ("cross-origin-resource-policy", "same-origin"),
        ("cache-control", "no-store"),
        ("vary", "Accept"),
    )


def render_error_page(status: int, text: str) -> bytes:
    """The page that says why a request of a browser failed. It says nothing about the server."""
    heading = ERROR_HEADINGS.get(status, "This did not work")
    # The heading says it: "Not found: nothing is served …".
    first, colon, rest = text.partition(": ")
    if colon and status in _PHRASES and first.lower() == _PHRASES[status].lower():
        text = rest[:1].upper() + rest[1:]
    main = f"<p class=status>{status}</p><h1>{heading}</h1><p class=lead>{escape(text)}</p>"
    return render_html_page(heading, f"<div class=narrow>{main}</div>")


_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
