"""Compares the tools that a server lists with a file in the repository."""

from __future__ import annotations

import json
from pathlib import Path

from defserve.testing.client import SyncClient


def assert_schemas(client: SyncClient, path: str | Path, *, update: bool | None = None) -> None:
    """Compare tools/list with the file at `path`; "{era}" in it is replaced by the client's era.

    With `update` the file is written instead; the default is whether pytest runs with --update-schemas.
    Raises AssertionError with the difference.
    """
    file = Path(str(path).format(era=client.era or client.version))
    tools = sorted(client.tools(), key=lambda tool: str(tool.get("name")))
    # Sorted, so that a change of order is no change of the text.
    now = json.dumps(tools, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    if client.updates_snapshots if update is None else update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(now, encoding="utf-8")
    elif not file.exists():
        raise AssertionError(f"there is no snapshot {file} yet\n  fix: run pytest --update-schemas and commit the file")
    elif (before := file.read_text(encoding="utf-8")) != now:
        from difflib import unified_diff

        changes = unified_diff(before.splitlines(), now.splitlines(), "committed", "served", lineterm="")
        fix = "  fix: if the change is meant, run pytest --update-schemas and commit the file"
        raise AssertionError("\n".join((f"the tools differ from {file}", *changes, fix)))
