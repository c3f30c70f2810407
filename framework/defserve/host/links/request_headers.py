"""The HTTP headers in which a stateless request repeats parts of its body (2026-07-28: Streamable HTTP)."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from defserve.host.eras import PREFIX
from defserve.host.fields import object_of
from defserve.transports.http.headers import METHOD, NAME, NAMED_BY, SENTINEL, SENTINEL_END, VERSION
from defserve.wire.messages import Request

Mirrors: TypeAlias = Mapping[tuple[str, ...], str]
"""The path of a value in a tool's arguments, and the header that repeats it."""

# The only characters that a header may have. It also loses blanks at its ends.
PLAIN: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


def version_of(request: Request) -> str | None:
    """The protocol version that a stateless request names; None for a request of the handshake era."""
    version = object_of(request.params.get("_meta")).get(PREFIX + "protocolVersion")
    return version if isinstance(version, str) else None


def request_headers(request: Request, version: str, mirrors: Mirrors) -> dict[str, str]:
    """The headers of one request. `mirrors` are those of the tool that it calls."""
    headers = {VERSION: version, METHOD: request.method}
    name = request.params.get(NAMED_BY.get(request.method, ""))
    if isinstance(name, str):
        headers[NAME] = encode_value(name)
    for path, header in mirrors.items():
        value: Any = request.params.get("arguments")
        for key in path:
            value = object_of(value).get(key)
        if (text := _text(value)) is not None:
            headers[header] = encode_value(text)
    return headers


def encode_value(text: str) -> str:
    """`text` as a header value: unchanged, or in Base64 if HTTP could change, refuse or misread it."""
    if PLAIN.fullmatch(text) and not (text.startswith(SENTINEL) and text.endswith(SENTINEL_END)):
        return text
    return f"{SENTINEL}{base64.b64encode(text.encode()).decode()}{SENTINEL_END}"


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, str | int) else None
