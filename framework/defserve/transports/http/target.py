"""The target of a request line: a path, or an absolute URI whose host is judged as the Host header is. No I/O."""

from __future__ import annotations

import re
from urllib.parse import unquote

from defserve.transports.asgi import Scope
from defserve.transports.http.gate import DEFAULT_PORTS, GateRefusal

# RFC 9112 §3.2.2, without a user.
_ABSOLUTE = re.compile(rb"(https?)://([^/@\\]+)(/.*)", re.IGNORECASE)

# What needs no percent-encoding in a path (RFC 3986 §2.3), and the slash.
_NEEDLESS = re.compile(rb"%(?:2[DEFdef]|3[0-9]|4[1-9A-Fa-f]|5[0-9AFaf]|6[1-9A-Fa-f]|7[0-9AEae])")

SECOND_SPELLING = GateRefusal(400, "the path encodes letters, digits or slashes with %: write them as they are")


def has_second_spelling(scope: Scope) -> bool:
    """Whether the path of a request is written in a way that our own paths have none: `/%6detrics`, `/tools%2Fadd`.

    A proxy in front that denies a path denies what is written, so nothing may be there under another writing.
    """
    target: bytes = scope.get("raw_path") or b""
    return b"%" in target and _NEEDLESS.search(target.partition(b"?")[0]) is not None


def read_target(scope: Scope, host: str | None) -> GateRefusal | None:
    """Why a request with this target is refused, or None. An absolute URI is replaced by its path.

    Its host must be that of the Host header: whoever judges one of them has then judged both.
    """
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    if target.startswith(b"/") and not target.startswith(b"//"):
        return None
    if not target and not scope["path"]:
        return None  # an app that is mounted without a path
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        return GateRefusal(400, "the target of a request must be a path, or an http URI without a user")
    scheme, authority, path = (part.decode("latin-1") for part in absolute.groups())
    if _known(authority, scheme) != _known(host or "", scheme):
        return GateRefusal(400, "the target of the request and its Host header name different hosts")
    scope["path"], scope["raw_path"] = unquote(path), path.encode("latin-1")
    return None


def _known(authority: str, scheme: str) -> str:
    return authority.lower().removesuffix(f":{DEFAULT_PORTS[scheme.lower()]}")
