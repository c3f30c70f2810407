"""Skills in a folder: one with texts and a picture, one small one."""

from __future__ import annotations

from pathlib import Path

from defserve import Server
from tests.inspector.greenhouse import day_picture

REFUNDS = """---
name: refunds
description: Decide about refunds. Use it when somebody wants money back.
license: MIT
---

# Refunds

1. Look the order up with the tool `order`.
2. Answer with the words of [the mail](examples/email.md), not of [another](../other.md).

<script>alert(1)</script>
"""


def manuals(folder: Path) -> Server:
    """A server with the skills of `folder`, which are written there."""
    files: dict[str, str | bytes] = {
        "refunds/SKILL.md": REFUNDS,
        "refunds/examples/email.md": "Dear {name}, we have refunded {amount}.\r\n",
        "refunds/assets/flow.png": day_picture(),
        "refunds/assets/data.bin": bytes(range(256)),
        "greeting/SKILL.md": "---\nname: greeting\ndescription: Say hello.\n---\n\nSay hello first.\n",
    }
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data.encode() if isinstance(data, str) else data)
    server = Server("manuals", "1.1.0")
    server.skills(folder)
    return server
