"""What a run of the official suite found, and whether that is what we expect of each scenario. Pure judgement.

The suite's own `--expected-failures` looks at scored scenarios only. Here every scenario has to pass unless it is
listed, and a listed one that passes is as wrong as the other way round.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

Check = dict[str, Any]

# A run leaves one folder for each scenario; what it calls the time is not ours to read.
_FOLDER = re.compile(r"(?:server-)?(?P<name>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")

# What a check may come to, in the order it is told; the rest of what the suite notes is neither good nor bad.
STATUSES = {"SUCCESS": "passed", "FAILURE": "failed", "WARNING": "warned", "SKIPPED": "skipped"}
# A server that is only warned of what it SHOULD do does not do it.
_WRONG = ("FAILURE", "WARNING")

# Added to every scenario, also to one that had nothing to test.
_ALWAYS = "wire-schema-valid"

# (listed as an expected failure, proven) → verdict
_VERDICTS = {
    (False, True): "passed",
    (False, False): "failed",
    (True, False): "expected",
    (True, True): "stale",
}


class Scenario(NamedTuple):
    """One scenario and its checks; none when it broke off."""

    name: str
    checks: list[Check]

    @property
    def counts(self) -> Counter[str]:
        """How many checks have each of `STATUSES`."""
        return Counter(check["status"] for check in self.checks if check["status"] in STATUSES)

    @property
    def proven(self) -> bool:
        """Something was tested and nothing failed: a scenario that only skips shows nothing."""
        passed = any(check["status"] == "SUCCESS" and check["id"] != _ALWAYS for check in self.checks)
        return passed and not any(self.wrong)

    @property
    def wrong(self) -> list[Check]:
        return [check for check in self.checks if check["status"] in _WRONG]

    def verdict(self, expected_failures: Collection[str]) -> str:
        return _VERDICTS[self.name in expected_failures, self.proven]


def scenarios(folder: Path) -> Iterator[Scenario]:
    """The scenarios whose results a run left in `folder`, in the order they ran."""
    folders = [(path.relative_to(folder).as_posix(), path) for path in folder.rglob("*") if path.is_dir()]
    found = [(match["name"], path) for name, path in folders if (match := _FOLDER.fullmatch(name))]
    for name, path in sorted(found, key=lambda item: item[1].stat().st_mtime_ns):
        checks = path / "checks.json"
        yield Scenario(name, json.loads(checks.read_text(encoding="utf-8")) if checks.exists() else [])


def expected_failures(path: Path) -> list[str]:
    """The names in an expected-failures file, of which only the plain form is read: `  - scenario  # reason`."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line.removeprefix("- ").strip() for line in lines if line.startswith("- ")]


def described(scenario: Scenario, most: int = 2000) -> Iterator[str]:
    """What went wrong in a scenario, for a person."""
    if not scenario.checks:
        yield "it broke off: see the log of the run"
    elif not scenario.wrong:
        yield f"nothing was tested: {spelled(scenario.counts)}"
    for check in scenario.wrong:
        yield f"✗ {check['id']} ({STATUSES[check['status']]}): {check['description']}"
        yield f"  {check.get('errorMessage', '(no message)')}"
        details = json.dumps(check.get("details"), ensure_ascii=False)
        yield f"  {details[:most]}{' …' if len(details) > most else ''}"


def total(found: Iterable[Scenario]) -> Counter[str]:
    return sum((scenario.counts for scenario in found), Counter[str]())


def spelled(counts: Counter[str]) -> str:
    """`84 passed, 0 failed`, and the other statuses that occur."""
    said = ("SUCCESS", "FAILURE")
    return ", ".join(
        f"{counts[status]} {word}" for status, word in STATUSES.items() if counts[status] or status in said
    )
