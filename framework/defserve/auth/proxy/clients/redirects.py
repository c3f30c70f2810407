"""Where a client may get its codes: exactly where it said, except for the port on this machine (RFC 8252 §7.3)."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

from defserve.auth.urls import is_loopback

LONGEST: Final = 1024
_TEXT: Final = re.compile(r"[!#-;=?-\[\]_a-z~%]+")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
# Schemes that a browser acts on itself: they are no application's own.
_OF_BROWSERS: Final = frozenset(
    "about blob chrome chrome-extension data edge file filesystem ftp http https intent javascript jar mailto "
    "moz-extension resource sms tel vbscript view-source ws wss".split()
)


def is_redirect(uri: str) -> bool:
    """Whether a client may register this: https, http on this machine, or a scheme of an application's own."""
    parts = _parts(uri)
    if parts is None:
        return False
    if parts.scheme == "https":
        return bool(parts.hostname)
    if parts.scheme == "http":
        return is_loopback(parts.hostname or "")
    return parts.scheme not in _OF_BROWSERS and _SCHEME.fullmatch(parts.scheme) is not None and len(uri) > len("x:/")


def matches(registered: str, asked: str) -> bool:
    """Whether a redirect that a request names is one that was registered."""
    if registered == asked:
        return True
    ours, theirs = _parts(registered), _parts(asked)
    if ours is None or theirs is None or not is_native(registered) or ours.scheme != "http":
        return False
    return ours._replace(netloc=_without_port(ours)) == theirs._replace(netloc=_without_port(theirs))


def is_native(uri: str) -> bool:
    """Whether whatever runs on the user's machine may receive what is sent there."""
    parts = _parts(uri)
    return parts is None or parts.scheme != "https" or is_loopback(parts.hostname or "")


def target(uri: str) -> str:
    """How a person reads where a redirect leads."""
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return f"{parts.scheme}: (an application on this computer)"
    return f"{parts.netloc} (a program on this computer)" if is_loopback(parts.hostname or "") else parts.netloc


def _parts(uri: str) -> SplitResult | None:
    if len(uri) > LONGEST or _TEXT.fullmatch(uri) is None:
        return None
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    if "@" in parts.netloc or "#" in uri or (host or "").endswith(".") or not parts.scheme:
        return None
    return parts


def _without_port(parts: SplitResult) -> str:
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host
