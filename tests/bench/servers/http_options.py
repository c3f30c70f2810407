"""The HTTP server under every contender but defserve, which brings its own: the same parser and loop, no extras.

What defserve turns off (the access log, the date and server headers, a proxy's headers) is off for all, though none
of the others does that by default: it is no merit of a framework.
"""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def serve(app: Any, port: int, workers: int = 1) -> None:
    import uvicorn

    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        workers=workers,
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
    )
