"""A server behind a kernel that lists the tools of a file, and lists them again when the file has changed."""

import json
import sys
import threading
import time
from pathlib import Path

TOOLS = Path(sys.argv[1])


def listed():
    return json.loads(TOOLS.read_text())


def say(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def watch(before):
    while True:
        time.sleep(0.02)
        text = TOOLS.read_text()
        if text and text != before:
            before = text
            say({"method": "notifications/tools/list_changed"})


METHODS = {
    "initialize": lambda params: {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "governed", "version": "1"},
    },
    "ping": lambda params: {},
    "tools/list": lambda params: {"tools": listed()},
    "tools/call": lambda params: {"content": [{"type": "text", "text": f"did {params['name']}"}]},
}

# What is changed from the first answer on is a change, however late the thread begins.
threading.Thread(target=watch, args=[TOOLS.read_text()], daemon=True).start()
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request and "method" in request:
        method = METHODS.get(request["method"])
        if method is None:
            say({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        else:
            say({"id": request["id"], "result": method(request.get("params", {}))})
