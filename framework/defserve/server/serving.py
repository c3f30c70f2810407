"""Serving at an address: standard input, the network or a topic. Also makes the observers for logs and metrics."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, cast

from defserve.core.extension import Extension
from defserve.errors import DefserveError, UsageError
from defserve.server.decorators import find_author_location

if TYPE_CHECKING:
    from defserve.auth import Auth
    from defserve.core.composition import Composition
    from defserve.protocols.mcp.extension import MCP
    from defserve.protocols.mcpx.extension import TopicCarrier
    from defserve.protocols.mcpx.participant import Participant
    from defserve.serve.outbound import OutboundRunner
    from defserve.server.decorators import WebFields
    from defserve.server.server import Server


def serve_address(server: Server, on: str, token: str | None, token_file: str | None, web: WebFields) -> int:
    """Serve on an address until it ends. Returns the exit code."""
    if on.startswith("mcpx+"):
        from defserve.serve.outbound import serve_outbound

        own_token, carrier = read_token(token, token_file), server.mcpx.new_carrier()
        runner = make_topic_runner(
            server.composition, server.mcp, server.auth, carrier, on, own_token, is_announced=True
        )
        with explain_failed_lifespan(server):
            return serve_outbound(runner)
    if token is not None or token_file is not None:
        raise UsageError(f"a token is of no use on {on!r}", fix="to check the tokens of callers: Server(auth=…)")
    if on == "stdio" or on.startswith("stdio:"):
        return _on_stdio(server, on)
    from defserve.serve.address import Address
    from defserve.server.web import run_network_server

    address = Address.parse(on, "/mcp")
    shown = {"show_address": server.show_address, "show_note": server.show_note}
    with explain_failed_lifespan(server):
        return run_network_server(server.composition, server.mcp, server.auth, address, web, **shown)


def hide_uncaught_traceback(error: UsageError) -> None:
    """If nothing catches this error, Python prints `error: …` and `fix: …` with the author's line, and no frames."""
    if getattr(sys.excepthook, "__module__", None) not in (sys.__name__, __name__):
        return  # the program has a hook of its own
    where = "" if error.where else f"{find_author_location()}: "

    def show_uncaught(kind: type[BaseException], uncaught: BaseException, trace: TracebackType | None) -> None:
        if uncaught is error:
            print(f"error: {where}{error}", file=sys.stderr)
        else:
            sys.__excepthook__(kind, uncaught, trace)

    sys.excepthook = show_uncaught


def _on_stdio(server: Server, on: str) -> int:
    from defserve.serve.stdio import StdioService

    if server.auth is not None and server.auth.in_messages:
        from defserve.auth.bearer_tokens import check_verifier_settings

        check_verifier_settings(server.auth.verifier)
    if on in ("stdio", "stdio:") and sys.stdin and sys.stdin.isatty():
        print(
            f"{server.name} is waiting for a client on standard input; Ctrl-C stops it.\n"
            "Clients start it themselves. To try it by hand: defserve list FILE, defserve call FILE TOOL",
            file=sys.stderr,
        )
    service = StdioService(server.composition)
    with explain_failed_lifespan(server):
        return service.run()


@contextmanager
def explain_failed_lifespan(server: Server) -> Generator[None]:
    """Raises UsageError with the author's line for what a lifespan raised. Errors of our own code pass."""
    try:
        yield
    except DefserveError:
        raise
    except Exception as error:
        from defserve.base.redaction import redact_text
        from defserve.client.targets import find_author_line

        cause: Exception = error
        while isinstance(cause, ExceptionGroup):
            cause = cast("ExceptionGroup[Exception]", cause).exceptions[0]
        if not (where := find_author_line(cause) or find_author_line(error)):
            raise
        what = "start" if server.composition.service.phase == "failed" else "stop as it should"
        told = redact_text(f"{type(cause).__name__}: {cause}").removesuffix(": ")
        notes = [f"\n  {redact_text(note)}" for note in getattr(error, "__notes__", ())]
        raise UsageError(
            f"server {server.name!r} did not {what}: {told}{''.join(notes)}",
            where=where,
            fix="correct the code there, or what it needs: a setting, a file, another service",
        ) from error


@asynccontextmanager
async def join_topic(server: Server, on: str, token: str | None) -> AsyncGenerator[Participant]:
    """Serve in a topic, on the running loop, for as long as the block runs."""
    from defserve.serve.outbound import run_outbound

    carrier = server.mcpx.new_carrier()
    try:
        async with run_outbound(make_topic_runner(server.composition, server.mcp, server.auth, carrier, on, token)):
            yield carrier.participant
    finally:
        server.mcpx.carriers.remove(carrier)


def make_observer_extensions(
    present: Sequence[Extension],
    log_level: str | None,
    log_json: bool,
    metrics: bool,
    telemetry: bool,
    name: str,
) -> list[Extension]:
    """The extensions for these options, except those that are present. Sets up logging, and telemetry for `name`."""
    found: list[Extension] = []
    if telemetry:
        from defserve.server.telemetry import Telemetry, set_up_telemetry_export

        set_up_telemetry_export(name)
        if not any(isinstance(extension, Telemetry) for extension in present):
            found.append(Telemetry())  # before the log of requests: its lines are written within their spans
    if log_level is not None or log_json:
        from defserve.server.logs import RequestLog, log_to_stderr

        if log_to_stderr(log_level, log_json):
            found.append(RequestLog())
    if metrics:
        from defserve.server.metrics import Metrics

        if not any(isinstance(extension, Metrics) for extension in present):
            found.append(Metrics())
    return found


# -- A server in a topic: its address, its token, and the runner for it.


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
    # Imported here: a server on stdio answers first, and loads none of it.
    from urllib.parse import parse_qs, urlsplit

    from defserve.auth.oauth import is_loopback
    from defserve.base.redaction import get_logger
    from defserve.protocols.mcpx.topic import remove_token_from_address
    from defserve.serve.outbound import OutboundRunner
    from defserve.server.web import refuse_scopes_without_auth

    url = on.removeprefix(TOPIC_ADDRESS_PREFIX)
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname or not parse_qs(parts.query).get("topic"):
        raise UsageError(f"{on!r} names no topic", fix="write it as mcpx+ws://host:port/ws?topic=demo")
    refuse_scopes_without_auth(mcp, auth)
    if token and parts.scheme == "ws" and not is_loopback(parts.hostname):
        get_logger().warning("the token travels to %s unencrypted; use mcpx+wss://", parts.hostname)
    topic = parse_qs(parts.query)["topic"][0]
    place = parts.netloc.rpartition("@")[2]
    carrier.topic.place = remove_token_from_address(url)

    def announce() -> None:
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
