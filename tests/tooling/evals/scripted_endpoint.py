"""An endpoint on loopback that speaks four dialects by a script: what a model would answer, and every way to fail.

It is not a model. A script maps a request to a `Reply`; the endpoint writes it as the dialect of the path has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

Json = dict[str, Any]
PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic",
    "/api/chat": "ollama",
}


@dataclass
class Reply:
    """What the "model" answers. `status` other than 200, `raw` or `hangs` are faults."""

    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    stop: str = "end"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    usage: tuple[int, int] | None = None


@dataclass
class Asked:
    """One request, in the same words for all dialects."""

    dialect: str
    body: Json
    headers: Mapping[str, str]

    @property
    def prompt(self) -> str:
        """The person's last words."""
        return self.person[-1] if self.person else ""

    @property
    def person(self) -> list[str]:
        messages = self.body.get("messages") or self.body.get("input") or []
        texts: list[str] = []
        for message in messages:
            if message.get("role") != "user":
                continue
            content = message["content"]
            parts = [content] if isinstance(content, str) else [b["text"] for b in content if b.get("type") == "text"]
            texts += parts
        return texts

    @property
    def results(self) -> list[str]:
        """What tools have answered so far."""
        found: list[str] = []
        for message in self.body.get("messages") or self.body.get("input") or []:
            if message.get("role") == "tool":
                found.append(message["content"])
            elif message.get("type") == "function_call_output":
                found.append(message["output"])
            elif message.get("role") == "user" and isinstance(message["content"], list):
                found += [block["content"] for block in message["content"] if block.get("type") == "tool_result"]
        return found

    @property
    def tools(self) -> dict[str, Json]:
        listed = [tool.get("function", tool) for tool in self.body.get("tools") or []]
        return {tool["name"]: tool for tool in listed}


Script = Callable[[Asked], Reply]


class ScriptedEndpoint:
    """Where it listens, and what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script, self.asked = script, list[Asked]()
        self.lock = Lock()
        self.url = ""

    def answer(self, asked: Asked) -> Reply:
        with self.lock:
            self.asked.append(asked)
        return self.script(asked)


@contextmanager
def scripted_endpoint(script: Script) -> Generator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are written one after the other: the body would wait 40 ms for the head to be acknowledged.
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length", 0)))
            dialect = PATHS[self.path]
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = endpoint.answer(Asked(dialect, json.loads(data), headers))
            body = reply.raw
            if body is None:
                error = {"error": {"message": reply.text, "type": "scripted"}}
                value = WRITERS[dialect](reply, len(data)) if reply.status == 200 else error
                body = json.dumps(value).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()


def _usage(reply: Reply, size: int) -> tuple[int, int]:
    return reply.usage or (size // 4, 5)


def _text_of(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def write_chat(reply: Reply, size: int) -> Json:
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": name, "arguments": _text_of(arguments)}}
        for at, (name, arguments) in enumerate(reply.calls)
    ]
    message = {"role": "assistant", "content": reply.text or None, **({"tool_calls": calls} if calls else {})}
    if reply.stop == "refused":
        message |= {"content": None, "refusal": reply.text}
    reason = {"length": "length", "filtered": "content_filter"}.get(reply.stop, "tool_calls" if calls else "stop")
    read, wrote = _usage(reply, size)
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": read, "completion_tokens": wrote},
    }


def write_responses(reply: Reply, size: int) -> Json:
    output: list[Json] = [{"type": "reasoning", "id": "r1", "encrypted_content": "OPAQUE-REASONING", "summary": []}]
    if reply.text:
        kind = {"type": "refusal", "refusal": reply.text} if reply.stop == "refused" else None
        output.append(
            {"type": "message", "role": "assistant", "content": [kind or {"type": "output_text", "text": reply.text}]}
        )
    output += [
        {"type": "function_call", "call_id": f"c{at}", "name": name, "arguments": _text_of(arguments)}
        for at, (name, arguments) in enumerate(reply.calls)
    ]
    why = {"length": "max_output_tokens", "filtered": "content_filter"}.get(reply.stop)
    read, wrote = _usage(reply, size)
    return {
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "output": output,
        "usage": {"input_tokens": read, "output_tokens": wrote},
    }


def write_anthropic(reply: Reply, size: int) -> Json:
    content: list[Json] = [{"type": "thinking", "thinking": "", "signature": "OPAQUE-REASONING"}]
    content += [{"type": "text", "text": reply.text}] if reply.text else []
    content += [
        {"type": "tool_use", "id": f"c{at}", "name": name, "input": arguments}
        for at, (name, arguments) in enumerate(reply.calls)
    ]
    reason = {"length": "max_tokens", "refused": "refusal"}.get(reply.stop, "tool_use" if reply.calls else "end_turn")
    read, wrote = _usage(reply, size)
    return {"content": content, "stop_reason": reason, "usage": {"input_tokens": read, "output_tokens": wrote}}


def write_ollama(reply: Reply, size: int) -> Json:
    calls = [{"function": {"name": name, "arguments": arguments}} for name, arguments in reply.calls]
    message = {"role": "assistant", "content": reply.text, **({"tool_calls": calls} if calls else {})}
    read, wrote = _usage(reply, size)
    reason = "length" if reply.stop == "length" else "stop"
    return {"message": message, "done_reason": reason, "prompt_eval_count": read, "eval_count": wrote}


WRITERS = {"chat": write_chat, "responses": write_responses, "anthropic": write_anthropic, "ollama": write_ollama}
