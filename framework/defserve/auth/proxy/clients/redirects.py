"""Where a client may get its codes: exactly where it said, except for the port on this machine (RFC 8252 §7.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, urlsplit

from defserve.auth.urls import is_loopback
from defserve.errors import UsageError

LONGEST: Final = 1024
_TEXT: Final = re.compile(r"[!#-;=?-\[\]_a-z~%]+")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
# A scheme made of a domain name turned around is its owner's (RFC 8252 §7.1). Any other may be one that opens a
# browser at an address of somebody's choice, such as `microsoft-edge:` or `googlechromes:`.
_DOMAIN_SCHEME: Final = re.compile(r"[a-z][a-z0-9-]*(\.[a-z0-9-]+)+")
# Schemes without a dot that MCP clients register for themselves.
CLIENT_SCHEMES: Final = frozenset(
    "antigravity antigravity-ide chatgpt cherrystudio claude claude-dev claude-desktop code-oss codex cursor "
    "cursor-nightly goose jetbrains kiro lmstudio opencode raycast trae trae-cn vscode vscode-insiders vscodium warp "
    "windsurf windsurf-next zed".split()
)
# Nobody can declare these to be an application's own: browsers and systems act on them themselves.
_NEVER_OWN: Final = frozenset(
    "about android-app blob brave browser chrome chrome-extension chrome-untrusted data devtools edge facetime feed "
    "file filesystem firefox ftp ftps googlechrome googlechromes http https intent ios-app itms itms-services jar "
    "javascript mailto market microsoft-edge moz-extension ms-appinstaller opera resource safari search-ms sftp shell "
    "skype sms smb ssh steam tel telnet urn vbscript view-source vivaldi webcal ws wss x-safari-http "
    "x-safari-https".split()
)


class RedirectRule:
    """Which redirects may be registered. `schemes` are those of further applications, declared by the operator.

    Raises UsageError for a scheme that is none, or no application's own.
    """

    def __init__(self, schemes: Iterable[str] = ()) -> None:
        given = [schemes] if isinstance(schemes, str) else list(schemes)
        for scheme in given:
            if _SCHEME.fullmatch(scheme) is None or scheme in _NEVER_OWN:
                raise UsageError(
                    f"OAuthProxy(redirect_schemes=…): {scheme!r} is not the scheme of an application",
                    fix='give the part before the colon, in lower case: redirect_schemes=["myapp"]',
                )
        self._schemes = CLIENT_SCHEMES | frozenset(given)

    def is_redirect(self, uri: str) -> bool:
        """Whether a client may register this: https, http on this machine, or a scheme of an application's own."""
        parts = _parts(uri)
        if parts is None:
            return False
        if parts.scheme == "https":
            return bool(parts.hostname)
        if parts.scheme == "http":
            return is_loopback(parts.hostname or "")
        is_own = parts.scheme in self._schemes or _DOMAIN_SCHEME.fullmatch(parts.scheme) is not None
        # What follows is a path or `//`: after a bare colon could come a whole address for whoever opens addresses.
        return is_own and uri.startswith("/", len(parts.scheme) + 1) and len(uri) > len(parts.scheme) + 2


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
