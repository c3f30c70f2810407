"""A server behind a kernel that lists the tools of a file, and lists them again when the file has changed."""

import json
import sys
import threading
import time
from pathlib import Path

TOOLS = Path(sys.argv[1])


MORE = TOOLS.with_suffix(".more")
"""What it offers beside tools: prompts, templates, instructions."""


def listed():
    return json.loads(TOOLS.read_text())


def more(name, otherwise):
    return json.loads(MORE.read_text()).get(name, otherwise) if MORE.exists() else otherwise


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
        "capabilities": {
            "tools": {"listChanged": True},
            **({"prompts": {}, "resources": {}} if MORE.exists() else {}),
        },
        "serverInfo": {"name": "governed", "version": "1"},
        **({"instructions": more("instructions", "")} if MORE.exists() else {}),
    },
    "ping": lambda params: {},
    "prompts/list": lambda params: {"prompts": more("prompts", [])},
    "resources/list": lambda params: {"resources": []},
    "resources/templates/list": lambda params: {"resourceTemplates": more("templates", [])},
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
