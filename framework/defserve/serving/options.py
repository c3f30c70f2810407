"""The options of `Server.run` and `Server.asgi` that say how a server is reached over the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict


class WebFields(TypedDict, total=False):
    """How a server is reached over the network; see `transports.http.app.HttpOptions` and `runner.network`.

    `parser` is `auto`, `httptools` or `h11`. A bind that is not loopback needs `allowed_hosts` or `trusted_proxy`.
    `legacy_sse` also serves HTTP+SSE (2024-11-05), at `/sse` beside the endpoint. `rest` also serves
    `POST /tools/{name}` and `GET /openapi.json` there, for callers that do not speak the protocol; `metrics` serves
    `GET /metrics` for Prometheus. `stateless` opens no sessions: clients that need one are told so.

    `page` is for a person who opens the address in a browser: what this is, how to connect clients, the tools as a
    client without a token sees them. If it is left out, there is a page unless `auth` is set or the browser asks for
    another name than those of this machine. True shows it in these cases too, False never.

    Who calls without a token is a stranger, whose word grants and confirms nothing. On a loopback address `local_token`
    writes a key to a file that only this user can read; who shows it is this user, as on stdio. On a unix socket
    `trust_same_user` makes every process of this user the local user.
    """

    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    trusted_proxy: bool
    local_token: bool
    trust_same_user: bool
    certfile: str
    keyfile: str
    parser: str
    legacy_sse: bool
    rest: bool
    metrics: bool
    page: bool | None
    stateless: bool
