"""Asks a server on stdio everything it can be asked without knowing it: lists, calls, reads and prompts.

The questions come from the server's own lists and schemas, by rule, so that two servers with equal lists are asked the
same. Speaks MCP with a handshake in plain JSON: neither side's own client takes part.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, Queue
from typing import Any, NamedTuple

START_SECONDS = 60.0
ANSWER_SECONDS = 5.0
ASKING_SECONDS = 45.0
"""How long one server is asked. Some try for minutes to reach what they cannot reach."""
VERSION = "2025-06-18"

Params = dict[str, Any]


class NoAnswer(Exception):
    """The server did not answer in time, or has ended. The text is the end of what it wrote to stderr."""


class Question(NamedTuple):
    """`title` is what the question is called in a report. `is_wrong`: the arguments do not fit, so it must fail."""

    title: str
    method: str
    params: Params
    is_wrong: bool = False


class StdioPeer:
    """A server process, asked one thing after another."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment))
        self._answers: Queue[Params | None] = Queue()
        self._errors: list[bytes] = []
        self._last_id = 0
        self._readers = [threading.Thread(target=read) for read in (self._read_answers, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> StdioPeer:
        try:
            return self._open()
        except NoAnswer:
            self.__exit__()
            raise

    def _open(self) -> StdioPeer:
        offer = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "migrations", "version": "1"}}
        self.about: Params = self.ask("initialize", offer, START_SECONDS)["result"]
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        for reader in self._readers:
            reader.join()
        with self._process:  # closes the pipes
            pass

    def ask(self, method: str, params: Params, seconds: float = ANSWER_SECONDS) -> Params:
        """The reply: it has `result` or `error`. Raises NoAnswer."""
        self._last_id += 1
        self._send({"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params})
        while True:
            try:
                message = self._answers.get(timeout=seconds)
            except Empty:
                raise NoAnswer(f"no answer to {method} in {seconds:.0f} s") from None
            if message is None:
                self._answers.put(None)
                raise NoAnswer(b"".join(self._errors).decode("utf-8", "replace").strip()[-600:] or "it ended")
            if "method" in message and "id" in message:  # it asks its client, which has nothing to offer
                refusal = {"code": -32601, "message": "Method not found"}
                self._send({"jsonrpc": "2.0", "id": message["id"], "error": refusal})
            elif message.get("id") == self._last_id:
                return message

    def list_items(self, method: str, key: str) -> list[Params]:
        """All pages of a list; empty if the server has no such method."""
        items: list[Params] = []
        params: Params = {}
        while True:
            result = self.ask(method, params, START_SECONDS).get("result", {})
            items += result.get(key, [])
            if not result.get("nextCursor"):
                return items
            params = {"cursor": result["nextCursor"]}

    def _send(self, message: Params) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended, which whoever waits for the answer learns

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # some print to stdout
            if isinstance(message, dict):
                self._answers.put(message)
        self._process.wait()
        self._answers.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


class Answers(NamedTuple):
    """What a server has: its lists, and its replies by the titles of the questions."""

    lists: dict[str, list[Params]]
    replies: dict[str, Params]
    about: Params


LISTS = {
    "tools": ("tools/list", "tools"),
    "resources": ("resources/list", "resources"),
    "templates": ("resources/templates/list", "resourceTemplates"),
    "prompts": ("prompts/list", "prompts"),
}


def read_lists(peer: StdioPeer) -> dict[str, list[Params]]:
    return {kind: peer.list_items(method, key) for kind, (method, key) in LISTS.items()}


def ask_everything(peer: StdioPeer, questions: Sequence[Question]) -> dict[str, Params]:
    """The reply to each question, as far as there is time. No answer is an answer as well."""
    replies: dict[str, Params] = {}
    end = time.monotonic() + ASKING_SECONDS
    for question in questions:
        if time.monotonic() > end:
            break
        try:
            replies[question.title] = peer.ask(question.method, question.params)
        except NoAnswer as silence:
            replies[question.title] = {"silence": str(silence)}
    return replies


# -- Questions, made from what a server lists.


def make_questions(lists: Mapping[str, list[Params]]) -> list[Question]:
    questions = [question for tool in lists["tools"] for question in _calls(tool)]
    for uri in (resource["uri"] for resource in lists["resources"]):
        questions += [Question(f"read {uri}", "resources/read", {"uri": uri})]
    for prompt in lists["prompts"]:
        arguments = {each["name"]: "word" for each in prompt.get("arguments") or [] if each.get("required")}
        params = {"name": prompt["name"], "arguments": arguments}
        questions.append(Question(f"prompt {prompt['name']}", "prompts/get", params))
    questions.append(Question("call a tool that is not there", "tools/call", {"name": "no such tool"}, True))
    return questions


def _calls(tool: Params) -> Iterator[Question]:
    name, schema = tool["name"], tool["inputSchema"]
    properties: Params = schema.get("properties") or {}
    required = [each for each in schema.get("required") or [] if each in properties]
    definitions: Params = schema.get("$defs") or {}

    def call(variant: str, arguments: Params, *, is_wrong: bool = False) -> Question:
        return Question(f"call {name} ({variant})", "tools/call", {"name": name, "arguments": arguments}, is_wrong)

    least = {each: make_value(properties[each], definitions) for each in required}
    yield call("what it needs", least)
    everything = {each: make_value(part, definitions) for each, part in properties.items()}
    if everything.keys() != least.keys():
        yield call("everything", everything)
    if required:
        yield call("nothing", {}, is_wrong=True)
        if (wrong := _wrong_value(properties[required[0]])) is not None:
            yield call("a wrong type", {**least, required[0]: wrong}, is_wrong=True)


def make_value(schema: Any, definitions: Params, depth: int = 0) -> Any:
    """A value that fits a JSON Schema, always the same one."""
    if not isinstance(schema, dict) or depth > 6:
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return make_value(definitions.get(reference.rpartition("/")[2], {}), definitions, depth + 1)
    for key in ("const", "default"):
        if schema.get(key) is not None:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        options = [each for each in schema.get(key) or [] if each.get("type") != "null"]
        if options:
            return make_value(options[0], definitions, depth + 1)
    kind = schema.get("type")
    kind = next((each for each in kind if each != "null"), "null") if isinstance(kind, list) else kind
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return min(max(1, low), schema.get("maximum", max(1, low)))
    if kind == "array":
        return [make_value(schema.get("items") or {}, definitions, depth + 1)] * max(1, schema.get("minItems", 1))
    if kind == "object":
        parts: Params = schema.get("properties") or {}
        return {each: make_value(parts.get(each), definitions, depth + 1) for each in schema.get("required") or []}
    text = {"date": "2026-01-02", "date-time": "2026-01-02T03:04:05Z", "uri": "http://localhost/"}
    return {"boolean": True, "null": None}.get(kind or "", text.get(schema.get("format", ""), "word"))


def _wrong_value(schema: Params) -> Any:
    """A value of a type that is surely wrong; None where nothing is."""
    kinds = {"integer": "many", "number": "many", "boolean": "perhaps", "array": 7, "object": 7, "string": {"a": 1}}
    return kinds.get(schema.get("type", "")) if isinstance(schema.get("type"), str) else None
