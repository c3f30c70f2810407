"""What a server tells the world about its tools, compared with a file in the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from defserve.testing.client import SyncClient


def assert_schemas(client: SyncClient, path: str | Path, *, update: bool | None = None) -> None:
    """Compare tools/list with the file at `path`; "{era}" in it stands for the client's era.

    With `update` (by default: when pytest runs with --update-schemas) the file is written instead.
    Raises AssertionError with the difference.
    """
    file = Path(str(path).format(era=client.era or client.version))
    now = canonical(client.tools())
    if client.updates_snapshots if update is None else update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(now, encoding="utf-8")
    elif not file.exists():
        raise AssertionError(f"there is no snapshot {file} yet\n  fix: run pytest --update-schemas and commit the file")
    elif (before := file.read_text(encoding="utf-8")) != now:
        raise AssertionError(
            f"the tools differ from {file}\n{difference(before, now)}\n"
            "  fix: if the change is meant, run pytest --update-schemas and commit the file"
        )


def canonical(tools: list[dict[str, Any]]) -> str:
    """JSON text that depends on what the tools say and on nothing else."""
    ordered = sorted(tools, key=lambda tool: str(tool.get("name")))
    return json.dumps(ordered, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def difference(before: str, now: str) -> str:
    from difflib import unified_diff

    return "\n".join(unified_diff(before.splitlines(), now.splitlines(), "committed", "served", lineterm=""))
