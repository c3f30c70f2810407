"""Makes the keys of a cluster's callers, and prints their tokens: python make_keys.py COUNT."""

from __future__ import annotations

import asyncio
import os
import sys

from defserve.auth import ApiKeys

PERMISSIONS = ["ToolsListAll", "ToolInvoke(*)", "ToolInvoke(wipe)"]


async def main(count: int) -> None:
    keys = ApiKeys(os.environ["CLUSTER_STORE"], server="cluster")
    for number in range(count):
        key = await keys.create(f"lane{number}", permissions=PERMISSIONS)
        print(key.token)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
