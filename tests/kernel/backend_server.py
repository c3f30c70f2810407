"""A server for a kernel to run: it adds, and it misbehaves on request.

It imports next to nothing, because tests start it often and a start of defserve takes ten times as long.
"""

import json
import os
import sys
import threading
import time

VERSION = "2025-11-25"


def say(text: str) -> str:
    print(text, file=sys.stderr, flush=True)
    return text


def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def leave(code: int) -> None:
    os._exit(code)


# Name → the function, and the type of each argument.
TOOLS = {
    "add": (lambda a, b: a + b, {"a": "integer", "b": "integer"}),
    "pid": (os.getpid, {}),
    "environment": (lambda name: os.environ.get(name, ""), {"name": "string"}),
    "say": (say, {"text": "string"}),
    "slow": (slow, {"seconds": "number"}),
    "hang": (lambda: time.sleep(3600), {}),
    "leave": (leave, {"code": "integer"}),
}
DESCRIPTIONS = {"add": "Add two numbers.", "pid": "The process that answers."}


def listed(name):
    properties = {argument: {"type": kind} for argument, kind in TOOLS[name][1].items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": DESCRIPTIONS.get(name, ""), "inputSchema": schema}


def called(params):
    function, _ = TOOLS[params["name"]]
    return {"content": [{"type": "text", "text": str(function(**params.get("arguments", {})))}]}


METHODS = {
    "initialize": lambda params: {
        "protocolVersion": VERSION,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "backend", "version": "1"},
    },
    "ping": lambda params: {},
    "tools/list": lambda params: {"tools": [listed(name) for name in TOOLS]},
    "tools/call": called,
}


def answer(request):
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    method = METHODS.get(request["method"])
    if method is None:
        reply["error"] = {"code": -32601, "message": "Method not found"}
    else:
        reply["result"] = method(request.get("params", {}))
    # One write, so that the answers of two threads do not mix.
    os.write(1, json.dumps(reply).encode() + b"\n")


def serve():
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and "method" in request:
            if request.get("params", {}).get("name") == "slow":
                threading.Thread(target=answer, args=(request,)).start()
            else:
                answer(request)


if __name__ == "__main__":
    if "--refuse" in sys.argv:
        sys.exit(f"cannot start with {sys.argv[-1]}")
    say(f"started with {' '.join(sys.argv[1:])}")
    serve()
    if "--deaf" in sys.argv:
        # Goes on without its input, as a server does that does not notice that its client is gone.
        time.sleep(3600)
