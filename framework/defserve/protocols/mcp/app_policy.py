"""What servers and hosts say about apps: the client's offer, an item's link to a view, and what a view may reach.

It imports nothing of the server, so clients share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from defserve.core.json_values import is_array, is_mapping, is_object
from defserve.core.messages import Params
from defserve.errors import UsageError

APPS_EXTENSION_ID: Final = "io.modelcontextprotocol/ui"
UI_URI_SCHEME: Final = "ui://"
APP_MIME_TYPE: Final = "text/html;profile=mcp-app"
APPS_CAPABILITY: Final[Mapping[str, Any]] = {"extensions": {APPS_EXTENSION_ID: {"mimeTypes": [APP_MIME_TYPE]}}}


def can_show_apps(capabilities: Mapping[str, Any]) -> bool:
    """Whether a client can show views. Servers have nothing to offer in return."""
    extensions: Any = capabilities.get("extensions")
    offered: Any = extensions.get(APPS_EXTENSION_ID) if is_mapping(extensions) else None
    kinds: Any = offered.get("mimeTypes") if is_mapping(offered) else None
    return is_array(kinds) and APP_MIME_TYPE in kinds


# -- What an item has to do with views.


APP_FACET_NAME: Final = "apps"
"""The facet of a view, and of a tool that names a view or who may use it."""


class AppFacet(NamedTuple):
    """`uri` is the view that shows a tool's results. `visible_to` is who may use it: models, views, or both (None)."""

    uri: str | None = None
    visible_to: str | None = None


VIEW_ONLY_FACET: Final = AppFacet(visible_to="app")


def is_view_only(item: Any) -> bool:
    """Whether an item is for views and the hosts that show them, and for no model."""
    facet: AppFacet | None = item.facets.get(APP_FACET_NAME)
    return facet is not None and facet.visible_to == "app"


# -- What a view may reach (apps: `csp`, `permissions`): as its author says it, on the wire, and as a host's header.


# The option → its name on the wire, and the directives that it becomes.
SOURCES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "connect": ("connectDomains", ("connect-src",)),
    "resource": ("resourceDomains", ("script-src", "style-src", "img-src", "font-src", "media-src")),
    "frame": ("frameDomains", ("frame-src",)),
    "base_uri": ("baseUriDomains", ("base-uri",)),
}

# The option → its name on the wire, and its feature in an `allow` attribute.
APP_PERMISSION_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "camera": ("camera", "camera"),
    "microphone": ("microphone", "microphone"),
    "geolocation": ("geolocation", "geolocation"),
    "clipboard_write": ("clipboardWrite", "clipboard-write"),
}

# What a directive allows when no origin is named; `None` is nothing at all.
_ALWAYS: Final[Mapping[str, str | None]] = {
    "script-src": "'self' 'unsafe-inline'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "media-src": "'self' data:",
    "connect-src": None,
    "frame-src": None,
    "base-uri": "'self'",
}

# Nothing in it can end a directive or stand for a keyword. A wildcard stands for subdomains, never for a whole TLD.
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
ORIGIN: Final = re.compile(
    rf"(?:https?|wss?)://(?:\*\.{_LABEL}(?:\.{_LABEL})+|{_LABEL}(?:\.{_LABEL})*)(?::[0-9]{{1,5}})?",
    re.IGNORECASE | re.ASCII,
)
MAX_ORIGIN_LENGTH: Final = 300
MAX_ORIGINS: Final = 100


def is_origin(text: Any) -> bool:
    """Whether a text is one origin, such as `https://api.example.com` or `https://*.example.com`."""
    return isinstance(text, str) and len(text) <= MAX_ORIGIN_LENGTH and ORIGIN.fullmatch(text) is not None


def encode_csp(given: Mapping[str, Any], subject: str, where: str) -> Params:
    """`csp` as the wire has it. Raises UsageError for anything that hosts would refuse, or could misread."""
    if not is_object(given):
        raise UsageError(
            f"{subject}: csp={given!r} is not possible", where=where, fix=f'say what for: csp={{"connect": {given!r}}}'
        )
    _refuse_unknown(given, SOURCES, f"{subject}: csp", where)
    found: Params = {}
    for option, origins in given.items():
        if not isinstance(origins, list | tuple | set | frozenset):
            raise UsageError(
                f"{subject}: csp[{option!r}] is not a list", where=where, fix=f'csp={{"{option}": ["https://…"]}}'
            )
        named: list[Any] = [*origins]
        for origin in named:
            if not is_origin(origin):
                raise UsageError(
                    f"{subject}: csp[{option!r}] has {origin!r}, which is not an origin",
                    where=where,
                    fix='name a scheme and a host, without a path: "https://api.example.com", "https://*.example.com"',
                )
        if len(named) > MAX_ORIGINS:
            raise UsageError(f"{subject}: csp[{option!r}] has more than {MAX_ORIGINS} origins", where=where)
        if named:
            found[SOURCES[option][0]] = named
    return found


def encode_app_permissions(given: Iterable[str], subject: str, where: str) -> Params:
    """`permissions` as the wire has them. Raises UsageError for one that does not exist."""
    if isinstance(given, str):
        raise UsageError(
            f"{subject}: permissions={given!r} is not possible", where=where, fix=f"permissions=[{given!r}]"
        )
    names = [*given]
    _refuse_unknown(names, APP_PERMISSION_NAMES, f"{subject}: permissions", where)
    return {APP_PERMISSION_NAMES[name][0]: {} for name in names}


DISPLAY_MODES: Final = ("inline", "fullscreen", "pip")


def check_display_modes(given: Iterable[str], subject: str, where: str) -> None:
    """Raises UsageError for a mode that does not exist."""
    _refuse_unknown(given, DISPLAY_MODES, f"{subject}: display_modes", where)


def build_content_security_policy(csp: Any) -> str:
    """The `Content-Security-Policy` under which a host shows a view. `csp` is what its server sent, of any shape.

    What is not an origin is left out: it could loosen the policy.
    """
    named: dict[str, list[str]] = {}
    for member, directives in SOURCES.values():
        origins = csp.get(member) if is_object(csp) else None
        fit = [origin for origin in origins if is_origin(origin)][:MAX_ORIGINS] if is_array(origins) else []
        named |= dict.fromkeys(directives, fit)
    parts = ["default-src 'none'"]
    for directive, always in _ALWAYS.items():
        # A base of the author's replaces that of the page; everything else is added.
        kept = [] if always is None or (directive == "base-uri" and named[directive]) else [always]
        parts.append(" ".join([directive, *(kept + named[directive] or ["'none'"])]))
    return "; ".join([*parts, "object-src 'none'", "form-action 'none'"])


def list_allowed_browser_features(permissions: Any) -> list[str]:
    """The features for an `allow` attribute, of `permissions` as a server sent them."""
    asked: Mapping[str, Any] = permissions if is_object(permissions) else {}
    return [feature for name, feature in APP_PERMISSION_NAMES.values() if name in asked]


def _refuse_unknown(given: Iterable[str], known: Iterable[str], subject: str, where: str) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"{subject} has no {name!r}", where=where, fix=f"use some of {', '.join(known)}")
