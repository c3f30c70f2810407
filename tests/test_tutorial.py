"""Whoever types what the tutorial says sees what it shows: its files and commands, in order, in an empty folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reader import Reader, follow
from tests.tooling.scaffold.packages import ROOT, Environment

PAGE = ROOT / "docs" / "tutorial.md"

# Commands of the reader's environment. Its pip gets by without an index: what a wheel depends on is there already.
COMMANDS = {
    "defserve": "from defserve.cli import main; sys.exit(main())",
    "pytest": "import pytest; sys.exit(pytest.main())",
    "pip": "import subprocess; sys.exit(subprocess.call([{python!r}, '-m', 'pip', '--python', sys.executable,"
    " '--disable-pip-version-check', *sys.argv[1:], '--no-deps', '--no-index', '--no-compile']))",
}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    environment = Environment(tmp_path / "env", borrows=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "defserve.pth").write_text(str(ROOT / "framework"), encoding="utf-8")
    for name, code in COMMANDS.items():
        script = environment.bin / name
        script.write_text(f"#!{environment.python}\nimport sys; {code.format(python=sys.executable)}\n", "utf-8")
        script.chmod(0o755)
    for folder in ("home", "work"):
        (tmp_path / folder).mkdir()
    settings = {
        "HOME": str(tmp_path / "home"),
        "XDG_CONFIG_HOME": "",
        "NO_COLOR": "1",
        # Looking for plugins takes longer than the tests.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "-p defserve.testing.plugin -p no:cacheprovider",
    }
    with Reader(tmp_path / "work", environment.environ | settings) as reader:
        yield reader


# Twenty processes, one after another.
@pytest.mark.e2e
@pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="the page's commands are for bash")
def test_the_tutorial_comes_true(reader: Reader):
    follow(PAGE.read_text(encoding="utf-8"), reader)
