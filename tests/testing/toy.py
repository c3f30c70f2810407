"""A server small enough to trust: it adds, greets whom it asks for, and has a model write. In both eras."""

from __future__ import annotations

from typing import Any

from defserve.client import Answers, Client
from defserve.client.replies import RETURN_TYPE_KEY
from tests.client.pretend import SILENCE, STATELESS, PretendServer

QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "greet": (
        "elicitation/create",
        {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
    ),
    "sign_in": ("elicitation/create", {"mode": "url", "message": "Sign in", "url": "https://example.org"}),
    "write": ("sampling/createMessage", {"messages": [{"role": "user", "content": "a poem"}], "maxTokens": 9}),
    "look": ("roots/list", {}),
}

TOOLS = [
    {"name": "add", "inputSchema": {"type": "object"}, "_meta": {RETURN_TYPE_KEY: {"type": "integer"}}},
    *({"name": name, "inputSchema": {"type": "object"}} for name in QUESTIONS),
]


class Conversationalist(PretendServer):
    """The pretend server, answering tools/call; a question goes out as the era of the request has it."""

    def __init__(self) -> None:
        super().__init__({"server/discover": STATELESS["server/discover"], "tools/list": {"tools": TOOLS}})
        self.replies |= {"tools/call": self.call, "ping": {}, "logging/setLevel": {}, "subscriptions/listen": SILENCE}
        self.replies |= {"prompts/list": {"prompts": []}, "resources/read": {"contents": [{"text": "note"}]}}
        self.waiting: Any = None

    async def send(self, message: bytes) -> None:
        await super().send(message)
        last = self.sent[-1]
        if last.get("id") == "question" and "method" not in last:
            self._reply(self.waiting, text(last.get("result", last.get("error"))))

    def call(self, request: dict[str, Any]) -> Any:
        params, name = request["params"], request["params"]["name"]
        if name == "add":
            if token := params.get("_meta", {}).get("progressToken"):
                self.say({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
            self.say({"method": "notifications/message", "params": {"level": "info", "data": "adding"}})
            return text(params["arguments"]["a"] + params["arguments"]["b"])
        method, question = QUESTIONS[name]
        if "io.modelcontextprotocol/protocolVersion" not in params.get("_meta", {}):
            self.waiting = request
            self.say({"id": "question", "method": method, "params": question})
            return SILENCE
        if "inputResponses" in params:
            return text(params["inputResponses"]["q"])
        return {"resultType": "input_required", "inputRequests": {"q": {"method": method, "params": question}}}


def text(value: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(value)}]}


class ToyServer:
    """What the fixtures need of a server: `connect`, and `run` to be taken for one."""

    def connect(self, version: str | None = None, answers: Answers | None = None, **options: Any) -> Client:
        return Client(Conversationalist(), version=version, answers=answers, **options)

    def run(self, on: str = "stdio:") -> None:
        print(f"serving on {on}")


server = ToyServer()
