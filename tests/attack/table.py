"""The rows as a table of plain text, and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.attack.trial import Row

COLUMNS = ("family", "attack", "tried", "held", "control", "MB", "notes")
NUMBERS = (2, 3, 5)
"""The columns that are aligned to the right."""


def line(row: Row) -> str:
    """One row while the run goes on."""
    word = "held" if row.is_good and row.untried is None else "skipped" if row.is_good else "NOT HELD"
    if row.untried is not None and not row.is_good:
        word = "NOT TRIED"
    return f"{word:9} {row.attack.family}: {row.attack.name} ({row.held}/{row.tried}, {row.seconds:.1f} s)"


def table(rows: Sequence[Row], width: int | None = None) -> list[str]:
    """All rows; notes fill what is left of the line, and go on below it."""
    cells = [
        (row.attack.family, row.attack.name, str(row.tried), str(row.held), row.control, *_last(row)) for row in rows
    ]
    widths = [max(len(row[n]) for row in [COLUMNS, *cells]) for n in range(len(COLUMNS) - 1)]
    room = max((width or shutil.get_terminal_size((160, 24)).columns) - sum(widths) - 2 * len(widths), 40)
    found: list[str] = []
    for cell in [COLUMNS, *cells]:
        first, *more = [cell[-1][at : at + room] for at in range(0, len(cell[-1]), room)] or [""]
        aligned = [
            text.rjust(size) if n in NUMBERS else text.ljust(size)
            for n, (text, size) in enumerate(zip(cell, widths, strict=False))
        ]
        found.append("  ".join([*aligned, first]).rstrip())
        found.extend(" " * (sum(widths) + 2 * len(widths)) + rest for rest in more)
    return found


def summary(rows: Sequence[Row], seconds: float) -> str:
    bad = [row for row in rows if not row.is_good]
    skipped = sum(row.untried is not None and row.is_good for row in rows)
    tried, held = sum(row.tried for row in rows), sum(row.held for row in rows)
    said = f"{len(rows)} rows, {tried:,} tries, {held:,} held, in {seconds:.0f} s"
    if skipped:
        said += f"; {skipped} not tried, because this machine lacks what they need"
    controls = [bite for row in rows for bite in row.bites or ()]
    if any(row.bites is not None for row in rows):
        none = sum(row.bites == [] for row in rows)
        said += f"; {sum(bite.has_bitten for bite in controls)} of {len(controls)} controls bit"
        said += f", {none} rows have none" if none else ""
    return f"{said}; {len(bad)} NOT HELD" if bad else f"{said}; all held"


def write_json(rows: Sequence[Row], seed: int, path: Path) -> None:
    found: list[dict[str, Any]] = [
        {
            "family": row.attack.family,
            "attack": row.attack.name,
            **({"expected": row.attack.expected} if row.attack.expected else {}),
            "tried": row.tried,
            "held": row.held,
            "good": row.is_good,
            "growth_mb": row.growth,
            "seconds": round(row.seconds, 2),
            "not_tried": str(row.untried) if row.untried is not None else None,
            **({"controls": [asdict(bite) for bite in row.bites]} if row.bites is not None else {}),
            "failures": row.failures,
            "notes": row.notes,
        }
        for row in rows
    ]
    path.write_text(json.dumps({"seed": seed, "rows": found}, indent=1) + "\n")


def _last(row: Row) -> tuple[str, str]:
    return "" if row.growth is None else f"{row.growth:.0f}", " ".join(row.note.split())
