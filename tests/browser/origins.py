"""Origins on loopback: a host, its sandbox for views, and others that a view may try to reach."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Reply: TypeAlias = tuple[str, bytes, dict[str, str]]
"""The media type, the body, and further headers."""
Serve: TypeAlias = Callable[[str, bytes], Reply | None]
"""The reply for a path and a body; None if there is nothing."""


class Origin:
    """`url` has no slash at its end. `asked` are the paths that were asked for, in order."""

    def __init__(self, url: str) -> None:
        self.url, self.asked = url, list[str]()


@contextmanager
def origin(serve: Serve) -> Generator[Origin]:
    """An origin of its own, which is a port of 127.0.0.1."""
    found = Origin("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            reply = serve(self.path, self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            kind, body, headers = reply or ("text/plain", b"nothing", {})
            self.send_response(200 if reply else 404)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def anything(path: str, body: bytes) -> Reply:
    """Whatever a view might load, for everybody."""
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
    kind = next((kind for ending, kind in kinds.items() if path.endswith(ending)), "text/plain")
    content = b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>' if path.endswith(".svg") else b"/**/"
    return kind, content, {"Access-Control-Allow-Origin": "*"}


def as_json(value: Any) -> Reply:
    return "application/json", json.dumps(value).encode(), {}
