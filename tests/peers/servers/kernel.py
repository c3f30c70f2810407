"""The kernel that peers meet: `kernel.py mgp.toml`. Its pages are short. DESK_TOKENS is who comes with which token."""

from __future__ import annotations

import json
import os
import sys

from defserve import Limits
from defserve.auth import StaticTokens
from defserve.kernel import Kernel

TOKENS = json.loads(os.environ.get("DESK_TOKENS", "{}"))

if __name__ == "__main__":
    auth = StaticTokens(TOKENS) if TOKENS else None
    Kernel.load(sys.argv.pop(1), limits=Limits(page=10), auth=auth).server.main()
