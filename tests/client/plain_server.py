"""A server of the handshake era in plain Python, which meets what it does not know in the way that its words say.

plain_server.py COUNT DISCOVER [METHOD=ANSWER …]: at `server/discover` it is `stuck` (it answers nothing any more),
`deaf` (it ignores the request), `closes` (its output, and stays), `closes-both`, `exits`, or `answers`. An ANSWER is
the code of an error, or `code:text`. Each start writes a line to the file COUNT.
"""

from __future__ import annotations

import json
import os
import sys
import time

RESULTS = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "logging": {}, "completions": {}},
        "serverInfo": {"name": "plain", "version": "1"},
    },
    "ping": {},
    "tools/list": {"tools": [{"name": "add", "inputSchema": {"type": "object", "properties": {}}}]},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
    "resources/list": {"resources": [{"uri": "note://one", "name": "one"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": [{"name": "greet"}]},
}


def wait_for_ever() -> None:
    while True:
        time.sleep(3600)


def meet_discover(how: str) -> None:
    if how == "stuck":
        wait_for_ever()
    if how == "exits":
        os._exit(1)
    if how in ("closes", "closes-both"):
        os.close(1)
        if how == "closes-both":
            os.close(0)
        wait_for_ever()


def main() -> None:
    count, how, *changes = sys.argv[1:]
    with open(count, "a") as file:
        file.write("started\n")
    changed = dict(change.split("=", 1) for change in changes)
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        method = asked["method"]
        if method == "server/discover" and how != "answers":
            meet_discover(how)
            continue
        if method in changed or method not in RESULTS:
            code, _, text = changed.get(method, "-32601").partition(":")
            reply = {"error": {"code": int(code), "message": text or "Method not found"}}
        else:
            reply = {"result": RESULTS[method]}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
