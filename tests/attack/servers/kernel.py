"""A kernel with an operator, an audit log, and one server that nobody may use without a grant."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from defserve import Limits
from defserve.kernel import Kernel

FOLDER = Path(os.environ["ATTACK_FOLDER"])
CHILD = """
from defserve import Server
server = Server("vault", "1")
@server.tool
def secret() -> str:
    return "the secret of the vault"
server.run()
"""
(FOLDER / "vault.py").write_text(CHILD)
FILE = f"""
[kernel]
admins = ["operator"]
audit = "audit.jsonl"
keys = "keys.json"
[kernel.register]
enabled = true
hosts = ["127.0.0.1:9"]
[[servers]]
id = "vault"
prefix = "vault"
default_policy = "opt-in"
command = "{sys.executable}"
args = ["vault.py"]
"""
(FOLDER / "mgp.toml").write_text(FILE)
server = Kernel.load(FOLDER / "mgp.toml", limits=Limits(header=2, body=3, question=20)).server


@server.tool
def echo(text: str) -> str:
    """Say it again."""
    return text
