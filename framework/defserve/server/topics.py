"""A server in a topic: its address, its token, and the runner for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from defserve.auth.oauth import is_loopback
from defserve.errors import UsageError
from defserve.protocols.mcpx.extension import TopicCarrier
from defserve.protocols.mcpx.topic import format_topic_address
from defserve.serve.outbound import OutboundRunner
from defserve.server.web import refuse_scopes_without_auth

if TYPE_CHECKING:
    from defserve.auth import Auth
    from defserve.core.composition import Composition
    from defserve.protocols.mcp.extension import MCP

log = logging.getLogger("defserve")

TOPIC_ADDRESS_PREFIX: Final = "mcpx+"
WAIT: Final = "if_taken=wait"
"""Asks a gateway not to let us in while another connection has our name."""


def make_topic_runner(
    composition: Composition,
    mcp: MCP,
    auth: Auth | None,
    carrier: TopicCarrier,
    on: str,
    token: str | None,
    *,
    is_announced: bool = False,
) -> OutboundRunner:
    """The runner of a composition that takes part in a topic. Raises UsageError for an address without a topic.

    `is_announced`: a line on standard error says each time that it has joined, and as whom.
    """
    from urllib.parse import parse_qs, urlsplit

    parts = urlsplit(on.removeprefix(TOPIC_ADDRESS_PREFIX))
    if parts.scheme not in ("ws", "wss") or not parts.hostname or not parse_qs(parts.query).get("topic"):
        raise UsageError(f"{on!r} names no topic", fix="write it as mcpx+ws://host:port/ws?topic=demo")
    refuse_scopes_without_auth(mcp, auth)
    if token and parts.scheme == "ws" and not is_loopback(parts.hostname):
        log.warning("the token travels to %s unencrypted; use mcpx+wss://", parts.hostname)
    url = on.removeprefix(TOPIC_ADDRESS_PREFIX)
    topic = parse_qs(parts.query)["topic"][0]

    place = parts.netloc.rpartition("@")[2]
    carrier.topic.place = format_topic_address(url)

    def announce() -> None:
        import sys

        name = carrier.participant.id
        print(f"defserve: joined the topic {topic!r} at {place} as {name!r}", file=sys.stderr, flush=True)

    return OutboundRunner(
        composition,
        carrier,
        url,
        token=token,
        return_url=f"{url}&{WAIT}",
        on_admitted=announce if is_announced else None,
    )


def read_token(token: str | None, file: str | None) -> str | None:
    """The token, or the content of the file. Raises UsageError for both, and for a file that cannot be read."""
    if file is None:
        return token
    if token is not None:
        raise UsageError("both token= and token_file= are given", fix="give one of the two")
    try:
        with open(file, encoding="utf-8") as lines:
            return lines.read().strip()
    except OSError as error:
        raise UsageError(f"cannot read the token from {file!r}: {error.strerror}", fix="check the path") from None
