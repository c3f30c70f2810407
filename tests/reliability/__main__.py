"""Writes docs/reliability.md, and the results of benchmarks on pages, of what is kept in `tests/reliability/results`.

`python -m tests.reliability --take chaos FILE` takes over what `make chaos ARGS="--json FILE"` wrote; the same for
soak, fuzz and bench. Samples are left out; the picture is drawn of them first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from defserve.base.version import VERSION
from tests.reliability.benchmarks import with_figures, with_results
from tests.reliability.pages import CampaignRow, reliability
from tests.site.pictures import files
from tests.soak.plots import picture

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
KINDS = ("chaos", "soak", "fuzz", "bench")
PICTURE = ROOT / "docs" / "pictures" / "soak.svg"
RELIABILITY, BENCHMARKS = ROOT / "docs" / "reliability.md", ROOT / "docs" / "benchmarks.md"
COMPARING = (ROOT / "README.md", ROOT / "docs" / "comparison.md")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("--take", nargs=2, action="append", default=[], metavar=("KIND", "FILE"))
    for kind, file in parser.parse_args(arguments).take:
        if kind not in KINDS:
            parser.error(f"there are no results of {kind!r}; use one of {', '.join(KINDS)}")
        take(kind, json.loads(Path(file).read_text()))
    RELIABILITY.write_text(reliability_page(), encoding="utf-8")
    for page, text in bench_pages().items():
        page.write_text(text, encoding="utf-8")
    for path, drawn in files().items():
        path.write_text(drawn, encoding="utf-8")
    return 0


def take(kind: str, found: dict[str, Any]) -> None:
    """Keep the results of a run, without what is not on the page."""
    if kind == "soak":
        PICTURE.write_text(picture(found["scenarios"]))
        for run in found["scenarios"].values():
            del run["times"], run["values"]
    if kind == "chaos":
        for row in found["rows"]:
            del row["notes"], row["failures"], row["growth_mb"], row["seconds"]
    if kind == "bench":
        for contenders in found["measures"].values():
            for figure in contenders.values():
                figure["rounds"] = [float(f"{value:.4g}") for value in figure["rounds"]]
                del figure["median"], figure["low"], figure["high"]
    else:
        found["machine"] = facts_of_run()
    (RESULTS / f"{kind}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def facts_of_run() -> dict[str, str]:
    return {
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "version": VERSION,
    }


def reliability_page() -> str:
    chaos, soak, fuzz = (_kept(kind) for kind in KINDS[:3])
    return reliability(chaos, soak, fuzz, load_campaigns())


def load_campaigns() -> list[CampaignRow]:
    rows: list[dict[str, Any]] = _kept("campaigns") or []
    return [CampaignRow(**row) for row in rows]


def bench_pages() -> dict[Path, str]:
    """The pages that show results of benchmarks."""
    found = _kept("bench")
    if found is None:
        return {}
    compared = {page: with_figures(page.read_text("utf-8"), found) for page in COMPARING}
    return {BENCHMARKS: with_results(BENCHMARKS.read_text("utf-8"), found), **compared}


def _kept(kind: str) -> Any:
    file = RESULTS / f"{kind}.json"
    return json.loads(file.read_text()) if file.exists() else None


if __name__ == "__main__":
    sys.exit(main())
