"""requirements-dev.lock: what the tests are run with, by version and hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.rows import for_each_row

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCK = (ROOT / "requirements-dev.lock").read_text("utf-8")
# One block a package: `name==version [; marker] \`, then its hashes.
BLOCKS = re.findall(r"^(\S+)==(\S+)(.*(?:\n +\S.*)*)", LOCK, re.MULTILINE)
EXTRAS = PROJECT["project"]["optional-dependencies"]
WANTED = [
    *PROJECT["project"]["dependencies"],
    *(each for name, extra in EXTRAS.items() if name != "all" for each in extra),
    *PROJECT["dependency-groups"]["test"],
]


def test_it_holds_packages_by_version_and_hash_and_nothing_else() -> None:
    assert len(BLOCKS) > 100
    assert all(len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", rest)) >= 1 for _, _, rest in BLOCKS)
    # No line of another form: no address of an index, no path, nothing that can be edited in place.
    assert LOCK.strip() == "\n".join(f"{name}=={version}{rest}" for name, version, rest in BLOCKS)


@for_each_row("text", WANTED)
def test_it_has_an_allowed_version_of_each_package_that_the_project_names(text: str) -> None:
    wanted = Requirement(text)
    name = canonicalize_name(wanted.name)
    versions = [version for each, version, _ in BLOCKS if canonicalize_name(each.partition("[")[0]) == name]
    allowed = [version for version in versions if wanted.specifier.contains(version, prereleases=True)]
    assert allowed, f"{text}: the lock has {versions or 'none'}; run `make lock`"
