"""Conversations in which the server may ask back: over HTTP sessions, WebSocket and HTTP+SSE, spoken the same way."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tests.attack.speaking.http import Json, Wire, events, head
from tests.attack.speaking.mcp import SESSION, Caller, message, notification, opening
from tests.attack.speaking.websocket import WebSocket

Answer = Callable[[Json], Json | None]
"""What is sent back for a request or a notification of the server; None for nothing."""


def silence(asked: Json) -> None:
    """Answer nothing."""


def yes(asked: Json) -> Json | None:
    """Agree to everything that is asked, in every way there is."""
    method, params = asked.get("method"), asked.get("params") or {}
    if method == "notifications/mgp.callback.request":
        return message("mgp/callback/respond", {"callback_id": params.get("callback_id"), "response": "confirm"}, "cb")
    if "id" not in asked:
        return None
    results: Mapping[Any, Json] = {
        "elicitation/create": {"action": "accept", "content": accepted(params)},
        "scope/elevate": {"approved": True, "payload": {}},
        "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "yes"}, "model": "m"},
        "roots/list": {"roots": []},
    }
    return {"jsonrpc": "2.0", "id": asked["id"], "result": results.get(method, {"approved": True, "accepted": True})}


def accepted(params: Mapping[str, Any]) -> Json:
    """A form filled in with yes: every field by its type."""
    fields = (params.get("requestedSchema") or {}).get("properties") or {}
    values = {"boolean": True, "string": "yes", "integer": 1, "number": 1}
    return {name: values.get(field.get("type"), True) for name, field in fields.items()}


class Conversation:
    """One session with a server, whatever carries it."""

    def __init__(self) -> None:
        self.heard: queue.Queue[Json | None] = queue.Queue()
        self.notices: list[Json] = []
        self._last = 0

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, sent: object) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def open(self, capabilities: Mapping[str, Any] | None = None, version: str = SESSION) -> Json:
        reply = self._exchange(opening(capabilities, version), silence, 10)
        self.send(notification("notifications/initialized"))
        return reply

    def ask(
        self, method: str, params: Mapping[str, Any] | None = None, answer: Answer = silence, seconds: float = 6
    ) -> Json:
        """The reply to a request; meanwhile the server's questions are answered by `answer`."""
        self._last += 1
        return self._exchange(message(method, params, self._last), answer, seconds)

    def hear_until(self, is_last: Callable[[Json], bool], seconds: float) -> list[Json]:
        """What comes by itself, up to the message that is the last, or the end of the time."""
        found, deadline = list[Json](), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                heard = self.heard.get(timeout=left)
            except queue.Empty:
                break
            if heard is None:
                break
            found.append(heard)
            if is_last(heard):
                break
        return found

    def _exchange(self, sent: Json, answer: Answer, seconds: float) -> Json:
        self.send(sent)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                heard = self.heard.get(timeout=left)
            except queue.Empty:
                break
            if heard is None:
                return {"error": {"code": None, "message": "the conversation has ended"}}
            if "method" in heard:
                self.notices.append(heard)
                if (reply := answer(heard)) is not None:
                    self.send(reply)
            elif heard.get("id") == sent.get("id"):
                return heard
        return {"error": {"code": None, "message": f"no reply within {seconds:g} s"}}


class Stream(threading.Thread):
    """Reads one HTTP response as it comes, and hands on its messages. `named` gets the data of events that are none."""

    def __init__(
        self, wire: Wire, heard: Callable[[Json], None], *, named: Callable[[bytes], None] | None = None
    ) -> None:
        super().__init__(daemon=True)
        self.wire, self._heard, self._named = wire, heard, named
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.begun = threading.Event()
        self.ids: list[str] = []
        self.start()

    def run(self) -> None:
        import json

        with suppress(OSError, ValueError):
            self._read_head()
            self.begun.set()
            body, chunked = b"", "chunked" in self.headers.get("transfer-encoding", "")
            is_stream = "event-stream" in self.headers.get("content-type", "")
            left = int(self.headers["content-length"]) if "content-length" in self.headers else None
            while left is None or left > 0:
                piece = self._chunk() if chunked else self._piece()
                if not piece:
                    break
                left = None if left is None else left - len(piece)
                body += piece
                if is_stream:
                    whole, gap, rest = body.rpartition(b"\n\n") if b"\n\n" in body else _windows(body)
                    self._events(whole + gap)
                    body = rest
            if not is_stream and body:
                found = json.loads(body)
                for each in found if isinstance(found, list) else [found]:
                    self._heard(each)
        self.begun.set()
        self.wire.is_closed = True

    def _events(self, text: bytes) -> None:
        import json

        for line in text.splitlines():
            if line.startswith(b"id:"):
                self.ids.append(line[3:].strip().decode())
        for data in events(text):
            if self._named is not None and not data.startswith((b"{", b"[")):
                self._named(data)
                continue
            with suppress(ValueError):
                self._heard(json.loads(data))

    def _read_head(self) -> None:
        while b"\r\n\r\n" not in self.wire.read:
            if not self.wire.more(60):
                raise OSError("no head")
        first, _, self.wire.read = self.wire.read.partition(b"\r\n\r\n")
        lines = first.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])}

    def _chunk(self) -> bytes:
        while b"\r\n" not in self.wire.read:
            if not self.wire.more(120):
                return b""
        size, _, self.wire.read = self.wire.read.partition(b"\r\n")
        count = int(size, 16)
        while len(self.wire.read) < count + 2:
            if not self.wire.more(120):
                return b""
        found, self.wire.read = self.wire.read[:count], self.wire.read[count + 2 :]
        return found

    def _piece(self) -> bytes:
        if not self.wire.read:
            self.wire.more(120)
        found, self.wire.read = self.wire.read, b""
        return found

    def ends_within(self, seconds: float) -> bool:
        self.join(seconds)
        return not self.is_alive()


def _windows(body: bytes) -> tuple[bytes, bytes, bytes]:
    return body.rpartition(b"\r\n\r\n") if b"\r\n\r\n" in body else (b"", b"", body)


class HttpConversation(Conversation):
    """A session over Streamable HTTP: a POST for each message, and what its response brings."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller, self._streams = caller, list[Stream]()

    def open(self, capabilities: Mapping[str, Any] | None = None, version: str = SESSION) -> Json:
        self.caller = self.caller.open(capabilities, version)
        return {"result": {}} if self.caller.session else {"error": {"code": None, "message": "no session"}}

    def send(self, sent: object) -> None:
        self.stream("POST", sent)

    def stream(self, verb: str, sent: object = None, **headers: str) -> Stream:
        """Begin a request; what its response brings is heard."""
        import json

        wire = Wire(self.caller.place, patience=120)
        body = b"" if sent is None else json.dumps(sent).encode()
        more = {"Content-Type": "application/json", "Content-Length": str(len(body))} if body else {}
        wire.send(head(verb, self.caller.path, self.caller.place, self.caller.all_headers(**more, **headers)) + body)
        self._streams.append(Stream(wire, self.heard.put))
        return self._streams[-1]

    def close(self) -> None:
        for stream in self._streams:
            stream.wire.socket.close()


class SocketConversation(Conversation):
    """A session over WebSocket."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        headers = {name: value for name, value in caller.all_headers().items() if name != "Accept"}
        self.socket = WebSocket(caller.place, headers, caller.path)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while self.socket.is_open and (heard := self.socket.hear(120)) is not None:
            for each in heard if isinstance(heard, list) else [heard]:
                self.heard.put(each)
        self.heard.put(None)

    def send(self, sent: object) -> None:
        self.socket.say(sent)

    def ends_within(self, seconds: float) -> bool:
        self._reader.join(seconds)
        return not self._reader.is_alive()

    def close(self) -> None:
        self.socket.socket.close()


class SseConversation(Conversation):
    """A session over HTTP+SSE of 2024."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller, self._path, self._found = caller, "", threading.Event()
        wire = Wire(caller.place, patience=120)
        wire.send(head("GET", "/sse", caller.place, {**caller.all_headers(), "Accept": "text/event-stream"}))
        self.stream = Stream(wire, self.heard.put, named=self._named)

    def _named(self, data: bytes) -> None:
        self._path = data.decode()
        self._found.set()

    @property
    def path(self) -> str:
        self._found.wait(5)
        return self._path

    def send(self, sent: object) -> None:
        self.caller.send("POST", sent, path=self.path or "/messages")

    def close(self) -> None:
        self.stream.wire.socket.close()
