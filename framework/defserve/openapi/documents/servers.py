"""The address of the API: written by the author, or taken from the document's servers. Requests never leave it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from defserve.errors import UsageError
from defserve.guard.network.urls import judge
from defserve.openapi.documents.loading import Document
from defserve.openapi.documents.operations import VARIABLE
from defserve.wire.jsonvalue import is_array, is_object

PRIVATE: Final = frozenset(("private-address", "private-name"))
FIX = 'say base_url="https://api.example.com/v1"'


def base_url_of(document: Document, given: str | None, variables: Mapping[str, str]) -> str:
    """The address that every path is added to, without a slash at its end. Raises UsageError if there is none."""
    if given is not None:
        return _checked(given)
    servers = document.content.get("servers")
    first: Any = servers[0] if is_array(servers) and servers else {"url": "/"}
    return _checked(server_url(first, variables, document.url))


def server_url(server: Any, variables: Mapping[str, str], home: str | None) -> str:
    """The address of one server of a document. `home` is where the document came from."""
    if not is_object(server) or not isinstance(url := server.get("url"), str):
        raise UsageError("a server of the document has no url", fix=FIX)
    known = server.get("variables")
    filled = VARIABLE.sub(lambda found: _variable(found[1], known, variables), url)
    if not re.match(r"https?://", filled):
        if home is None:
            raise UsageError(f"the document's server {filled[:100]!r} is not a whole address", fix=FIX)
        filled = urljoin(home, filled)
    return filled


def refuse_private(base: str) -> None:
    """Raises UsageError for the address of a document that is on a private network, as far as its text shows.

    A document is a stranger's. If it could choose, a model's calls would reach what only this machine can.
    """
    verdict = judge(f"{base}/", ports=None)
    if PRIVATE.isdisjoint(violation.rule for violation in verdict.violations):
        return
    raise UsageError(
        f"the document's server is on a private network: {urlsplit(base).hostname}",
        fix=f"if you trust it, write it yourself: base_url={json.dumps(base)}",
    )


def _variable(name: str, known: Any, chosen: Mapping[str, str]) -> str:
    about = known.get(name) if is_object(known) else None
    value = chosen.get(name, about.get("default") if is_object(about) else None)
    if not isinstance(value, str):
        raise UsageError(f"the server's variable {name!r} has no value", fix=f'say variables={{"{name}": "…"}}')
    allowed = about.get("enum") if is_object(about) else None
    if is_array(allowed) and allowed and value not in allowed:
        raise UsageError(
            f"the server's variable {name!r} cannot be {value!r}", fix=f"use one of {', '.join(map(str, allowed))}"
        )
    return value


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise UsageError(
            f"{parts.scheme}://{parts.hostname or '…'} is not the address of an API"
            if parts.username
            else f"{url[:200]!r} is not the address of an API",
            fix=f"{FIX}: no user, query or fragment",
        )
    return url.rstrip("/")


def own_base(servers: Sequence[Any], base: str, variables: Mapping[str, str], home: str | None) -> str | None:
    """The address for an operation with servers of its own; None if they are at another origin than the API."""
    try:
        url = _checked(server_url(servers[0], variables, home or base + "/"))
    except UsageError:
        return None
    there, here = urlsplit(url), urlsplit(base)
    return url if (there.scheme, there.netloc) == (here.scheme, here.netloc) else None
