"""The command `make campaigns`: run what a release needs, one after the other, and record how each went.

Without names it runs what has not passed yet on the `framework/` of this commit, so a run that was stopped goes on
where it was. Rows stay in `tests/reliability/results/campaigns.json`, and the page docs/reliability.md shows them. The
whole output of each is in `.campaigns/NAME.log`. Use a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.reliability import __main__ as pages
from tests.reliability.pages import CampaignRow

ROWS = pages.RESULTS / "campaigns.json"
LOGS = pages.ROOT / ".campaigns"
# What a row's commit stands for. The results are written by the runs themselves.
MEASURED = ("framework", "tests", "examples", "templates", ":!tests/reliability/results")
OPTIONS_OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL")
PASSED, FAILED = "passed", "failed"
# A clone has what is committed and nothing else.
FRESH_CLONE = "d=$(mktemp -d) && git clone -q . $d/defserve && (cd $d/defserve && CI=true {}); c=$?; rm -rf $d; exit $c"


@dataclass(frozen=True, slots=True)
class Campaign:
    """A command, and what in its output are its figures."""

    name: str
    command: str
    figures: str
    """A pattern. What its groups match, each time, is a figure."""
    options: str = ""
    """For `make`, as ARGS."""
    results: str = ""
    """The kind of results that it writes as JSON for the pages."""
    runs: int = 1
    """How often in a row it has to pass."""
    unwanted: str = ""
    """A pattern that a run which passes must not print."""

    def format_command(self, file: Path | None = None) -> str:
        """As people type it; with a file, as it also writes its results there."""
        options = f"{self.options} --json {file}".strip() if file and self.results else self.options
        return f'{self.command} ARGS="{options}"' if options else self.command


PYTEST = r"(\d+ passed.*?) in \d"
CAMPAIGNS = (
    Campaign("test", "make test", PYTEST),
    Campaign("requirements", "make requirements", r"^(all +.*)$"),
    Campaign("slow-tests", "make test-slow", PYTEST),
    Campaign("every-python", "make test-all", rf"(?:tests \((Python [\d.]+)|{PYTEST})"),
    Campaign("coverage", "make coverage", rf"(?:{PYTEST}|Total coverage: ([\d.]+%))"),
    Campaign("conformance", "make conformance", r"(\d+ scenarios.*: checks .*)$"),
    Campaign("kernel-conformance", "make conformance", r"(\d+ scenarios.*: checks .*)$", "--through-kernel"),
    Campaign("peers", "make peers", r"^(all as expected|\d+ features tried)", "--write"),
    Campaign("attack", "make attack", r"^(\d+ rows, .* tries.*)$"),
    Campaign("differential", "make differential", r"^([\d,]+ (?:streams|differences, \d+ kinds).*)$"),
    Campaign("load", "make load", r"^(all goals held|.* goals missed)$"),
    Campaign("faults", "make faults", r"^(\w[\w-]* +(?:\d|a full disk).*)$"),
    Campaign("chaos", "make chaos", r"^(\d+ rows, .* tries.*)$", results="chaos"),
    Campaign("events", "make events", r"^(\d+ acknowledged.*|killed: .*|\d+ subscriptions.*)$"),
    Campaign("cluster", "make cluster", r"^in all (.*)$"),
    Campaign("soak", "make soak", r"^([\d,]+ calls in .*)$", "--minutes 120", results="soak"),
    Campaign("fuzz", "make fuzz", r"^in all (.*)$", "--until 30", results="fuzz"),
    Campaign("properties", "make properties", PYTEST),
    Campaign("bench", "make bench", r"^(\d+ of \d+ goals met.*)$", results="bench"),
    Campaign("pages", "make apps", PYTEST),
    Campaign("site", "make site-check", PYTEST),
    Campaign("end-to-end", "make e2e", PYTEST),
    Campaign("search", "make search", r"(\d+ of \d+.*)$"),
    Campaign("migrations", "make migrations", r"^(\d+ of \d+ servers.*)$"),
    Campaign("release", "make release-check", PYTEST),
    Campaign(
        "fresh-clone",
        # What is committed, and nothing else.
        "git clone -q . /tmp/clone-$$ && cd /tmp/clone-$$ && CI=true bash .ci/run; c=$?; rm -rf /tmp/clone-$$; exit $c",
        r"^=== all passed in (\d+ s)$",
        runs=10,
        unwanted="these tests failed at first",
    ),
)


def main(arguments: list[str] | None = None) -> int:
    by_name = {campaign.name: campaign for campaign in CAMPAIGNS}
    parser = argparse.ArgumentParser(prog="make campaigns", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; without, those that have not passed yet")
    parser.add_argument("--once", action="store_true", help="run each at most once, also those that need several runs")
    parser.add_argument("--list", action="store_true", help="say which have passed, and run none")
    parser.add_argument("--except", dest="left_out", action="append", default=[], metavar="NAME", help="repeatable")
    options = parser.parse_args(arguments)
    for name in (*options.names, *options.left_out):
        if name not in by_name:
            parser.error(f"there is no campaign {name!r}; use one of: {', '.join(by_name)}")
    tree = _git("rev-parse", "--short=8", "HEAD:framework")
    rows: list[CampaignRow] = pages.load_campaigns()
    if options.list:
        for each in CAMPAIGNS:
            print(f"{each.name:20} {count_passes(each, rows, tree):2}/{each.runs:<2}  {each.format_command()}")
        return 0
    if changed := _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED):
        print(f"a row names a commit, and these differ from it; commit them first:\n{changed}", file=sys.stderr)
        return 2
    chosen = [by_name[n] for n in options.names] or [c for c in CAMPAIGNS if c.name not in options.left_out]
    failed: list[str] = []
    for campaign in chosen:
        again = campaign.name in options.names
        while again or count_passes(campaign, rows, tree) < campaign.runs:
            row: CampaignRow = run_campaign(campaign, tree)
            again = False
            # What was measured on another tree says nothing of this one.
            rows = [*(r for r in rows if r.name != row.name or (r.tree == tree and campaign.runs > 1)), row]
            save_rows(rows)
            print(f"{row.name}: {row.verdict} after {row.seconds} s; {row.figures}", flush=True)
            if row.verdict != PASSED:
                failed.append(campaign.name)
            if row.verdict != PASSED or options.once:
                break
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


def count_passes(campaign: Campaign, rows: Sequence[CampaignRow], tree: str) -> int:
    """How often it has passed in a row, up to now."""
    verdicts = [row.verdict for row in rows if row.name == campaign.name and row.tree == tree]
    failures = [place for place, verdict in enumerate(verdicts) if verdict != PASSED]
    return len(verdicts) - (failures[-1] + 1 if failures else 0)


def run_campaign(campaign: Campaign, tree: str) -> CampaignRow:
    LOGS.mkdir(exist_ok=True)
    file = LOGS / campaign.name
    log, results = file.with_suffix(".log"), file.with_suffix(".json")
    results.unlink(missing_ok=True)  # those of an earlier run must not count for one that fails
    began, commit, command = time.monotonic(), _git("rev-parse", "--short=8", "HEAD"), campaign.format_command(results)
    print(f"== {campaign.name}: {command}", flush=True)
    # Else each `make` below would take the options of the one that runs this.
    env = {name: value for name, value in os.environ.items() if name not in OPTIONS_OF_MAKE}
    with log.open("w") as out:
        done = subprocess.run(
            command, shell=True, cwd=pages.ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    text = log.read_text(errors="replace")
    is_good = done.returncode == 0 and not (campaign.unwanted and re.search(campaign.unwanted, text))
    facts = pages.facts_of_run()
    if campaign.results and results.exists():
        pages.take(campaign.results, json.loads(results.read_text()))
    return CampaignRow(
        name=campaign.name,
        command=campaign.format_command(),
        commit=commit,
        tree=tree,
        machine=f"{facts['day']}, {facts['system']}, Python {facts['python']}",
        seconds=round(time.monotonic() - began),
        figures=find_figures(campaign, text),
        verdict=PASSED if is_good else FAILED,
    )


def find_figures(campaign: Campaign, text: str) -> str:
    found = re.finditer(campaign.figures, text, re.MULTILINE)
    figures = [" ".join(group.split()) for match in found for group in match.groups() if group]
    return "; ".join(dict.fromkeys(figures)).replace("|", "/")


def save_rows(rows: Sequence[CampaignRow]) -> None:
    """In the order of the table, and the page with them."""
    places = {campaign.name: place for place, campaign in enumerate(CAMPAIGNS)}
    ordered = sorted(rows, key=lambda row: places.get(row.name, len(places)))
    ROWS.write_text(json.dumps([asdict(row) for row in ordered], indent=1, ensure_ascii=False) + "\n")
    pages.main([])


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=pages.ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
