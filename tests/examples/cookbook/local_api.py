"""An API on a port of this machine, for programs that call somebody else's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Asked:
    """A request, as the API sees it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@contextmanager
def local_api(answer: Callable[[Asked], tuple[int, Any]]) -> Iterator[str]:
    """Where the API is, for as long as the block runs. `answer` gives the status and the JSON of each reply."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url, sent = urlsplit(self.path), self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, url.path, dict(parse_qsl(url.query)), headers, json.loads(sent or "null"))
            status, value = answer(asked)
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            thread.join()
