"""The programs of FastMCP on the page for those who come from there, run with FastMCP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import migration
from tests.tooling.scaffold.packages import ROOT, Environment

# FastMCP is installed for it.
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_the_programs_of_fastmcp_do_what_the_page_says(tmp_path: Path):
    environment = Environment(tmp_path / "fastmcp")
    environment.install("fastmcp>=4.1,<5")
    said = environment.run("python", "-m", "tests.migration", "fastmcp", cwd=ROOT).splitlines()
    verdicts = [line[:4].strip() for line in said if line[4:].startswith(" fastmcp | ")]  # among what it logs
    assert verdicts == ["ok" for snippet in migration.snippets() if snippet.package == "fastmcp"]
