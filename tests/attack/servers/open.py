"""A server for strangers: no tokens. Its times are short, so that a slow attack is over soon."""

from __future__ import annotations

import json
import os

from defserve import Limits, Server
from tests.attack.servers.tools import declare

LIMITS = Limits(**{"header": 2, "body": 3, "question": 20, **json.loads(os.environ.get("ATTACK_LIMITS", "{}"))})

server = declare(Server("open", "1", limits=LIMITS, granted=["memory.write"]))


@server.resource("memo://a")
async def memo() -> str:
    """A resource to watch."""
    return "a"
