"""Runs programs in the sandbox and prints what came of each. A list of [level, source, seconds] comes on the input.

It runs without a network, in a folder with a canary and with a canary in its environment.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from defserve.errors import Refused
from defserve.sandbox import SandboxLimits, probe, run


def outcome(job: list[str]) -> dict[str, object]:
    level, source, seconds = job
    limits = SandboxLimits(seconds=float(seconds), memory_bytes=128 * 2**20)
    try:
        found = run(source, level=level, limits=limits)  # type: ignore[arg-type]
    except Refused as refused:
        return {"status": "refused", "error": str(refused)}
    told = f"{found.value!r} {found.stdout} {found.error}"
    return {
        "status": found.status,
        "value": found.value,
        "told": told[:20_000],
        "layers": list(found.layers),
        "engine": found.engine,
        "seconds": found.duration_ms / 1000,
    }


def main() -> None:
    jobs = json.load(sys.stdin)
    if missing := probe().missing:
        print(json.dumps({"missing": list(missing)}))
        return
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(outcome, jobs))
    left = sorted(path.name for path in Path.cwd().iterdir())
    print(json.dumps({"outcomes": found, "files": left}))


if __name__ == "__main__":
    main()
