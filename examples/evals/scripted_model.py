"""An endpoint for `defserve eval` that needs no model, key or network: it counts words.

It calls the tool whose name and description share the most words with what the person says. That isn't how a model
chooses, so its figures say nothing about your tools. It's here to try the command with.

    python scripted_model.py        # http://127.0.0.1:8090, until Ctrl-C
"""

import json
import re
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMON = frozenset(
    "a an and are back by can do for from has have here how i in is it me my of on or s so that the this to ve we what "
    "which with you your".split()
)


def split_words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower())) - COMMON


def choose_tool(said: str, tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The tool that shares the most words; the first one if several do; None if no tool shares any."""
    shared = [len(split_words(said) & split_words(f"{t['name']} {t.get('description', '')}")) for t in tools]
    return tools[shared.index(max(shared))] if any(shared) else None


def fill_arguments(said: str, tool: dict[str, Any]) -> dict[str, str]:
    """Names in the request, one for each required parameter."""
    names = re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", said) or ["?"]
    required = tool["parameters"].get("required", [])
    return {parameter: names[min(at, len(names) - 1)] for at, parameter in enumerate(required)}


def describe_better(request: str) -> list[str]:
    """Three descriptions for the tool that lost: its own, with words of the requests that it should have had."""
    case = json.loads(request)
    definitions, lost = case["definitions"], case["tool_that_lost"]
    taken = split_words(definitions[case["other_tool"]]["description"])
    counts = Counter(word for failure in case["failures"] for word in sorted(split_words(failure["request"]) - taken))
    words = [word for word, _ in counts.most_common(3)]
    description = definitions[lost]["description"]
    return [f"{description} For requests with: {', '.join(words[:count])}." for count in (1, 2, 3)]


def make_answer(body: dict[str, Any]) -> dict[str, Any]:
    said = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
    tools = [tool["function"] for tool in body.get("tools", [])]
    tool = choose_tool(said, tools)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if tool is not None:
        function = {"name": tool["name"], "arguments": json.dumps(fill_arguments(said, tool))}
        message["tool_calls"] = [{"id": "1", "type": "function", "function": function}]
    else:
        message["content"] = "Hello!" if tools else json.dumps(describe_better(said))
    usage = {"prompt_tokens": len(json.dumps(body)) // 4, "completion_tokens": 10}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(make_answer(body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the terminal is for you."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8090), Handler)
    print(f"scripted model on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
