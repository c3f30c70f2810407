"""`defserve gateway`: run a gateway, where participants meet in topics, until it is interrupted."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from defserve.base.redaction import get_logger
from defserve.cli.content import print_file_check
from defserve.cli.exits import EXIT_INTERRUPTED
from defserve.cli.parser import CommandArgument, CommandParser, make_flag
from defserve.errors import UsageError
from defserve.serve.address import TLS_SCHEMES, Address
from defserve.serve.sockets import bind_sockets

if TYPE_CHECKING:
    import ssl

    from defserve.gateway.policy import GatewayConfig

ON: Final = "ws://127.0.0.1:8100/ws"

EXAMPLES: Final = """  defserve gateway --config gateway.toml
  defserve gateway --on ws://127.0.0.1:8100/ws --config gateway.toml --log
  defserve gateway --on wss://0.0.0.0:443/ws --config gateway.toml --certfile cert.pem --keyfile key.pem
"""


def main(argv: list[str]) -> int:
    parser = CommandParser(
        "defserve gateway", "Run a gateway, where participants meet in topics, until it is interrupted.", EXAMPLES
    )
    options = parser.parse_options(
        argv,
        CommandArgument("--on", metavar="ADDRESS", default=ON, help=f"ws://host:port/path or wss://… (default: {ON})"),
        CommandArgument("--config", metavar="FILE", required=True, help="who may join, and what they may send (TOML)"),
        make_flag("--check", help="only check the file"),
        make_flag("--json", help="with --check: print JSON"),
        make_flag("--log", help="log to stderr who joins and leaves, one JSON object per line"),
        CommandArgument("--certfile", metavar="FILE", help="certificate for wss://"),
        CommandArgument("--keyfile", metavar="FILE", help="its key, if it is in another file"),
    )
    from defserve.gateway.policy import load_gateway_config

    if options.json:
        return print_file_check(
            options,
            options.config,
            lambda: _summarize_config(_address(options.on), load_gateway_config(options.config)),
        )
    address, config = _address(options.on), load_gateway_config(options.config)
    if options.check:
        print(f"{options.config} is valid")
        return 0
    if options.log:
        _log_to_stderr()
    tls = _tls(address, options)
    with bind_sockets(address) as sockets, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(address, config, tls, sockets))


def _summarize_config(address: Address, config: GatewayConfig) -> dict[str, Any]:
    return {"on": str(address), "strict": config.strict, "administered": config.admins is not None}


def _address(text: str) -> Address:
    address = Address.parse(text)
    if address.scheme not in ("ws", "wss"):
        raise UsageError(f"a gateway cannot listen on {text!r}", fix=f"write {ON}, or wss://host:port/path")
    return address


async def _serve(
    address: Address, config: GatewayConfig, tls: ssl.SSLContext | None, sockets: Sequence[socket.socket]
) -> int:
    from defserve.gateway.listener import serve_gateway

    loop = asyncio.get_running_loop()
    asked: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not asked.done():
            asked.set_result(code)

    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, EXIT_INTERRUPTED)):
        with suppress(NotImplementedError):  # Windows; there an interrupt is raised instead
            loop.add_signal_handler(number, end, code)
    async with serve_gateway(config, sockets, address.path, tls=tls):
        print(f"gateway on {replace(address, port=sockets[0].getsockname()[1])}", file=sys.stderr, flush=True)
        return await asked


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _tls(address: Address, options: Namespace) -> ssl.SSLContext | None:
    if address.scheme not in TLS_SCHEMES:
        return None
    if options.certfile is None:
        raise UsageError(f"{address.scheme}:// needs a certificate", fix="add --certfile (and --keyfile)")
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.certfile, options.keyfile)
    except (OSError, ssl.SSLError) as error:
        text = f"cannot use the certificate {options.certfile}: {error.strerror or error}"
        raise UsageError(text, fix="give the PEM files of a certificate chain and its key") from None
    return context


def _log_to_stderr() -> None:
    lines = logging.StreamHandler(sys.stderr)
    log = get_logger("gateway")
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    get_logger("gateway.websockets").setLevel(logging.ERROR)
