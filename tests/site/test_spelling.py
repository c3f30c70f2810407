"""The prose of the pages has no word that codespell knows to be misspelt."""

from __future__ import annotations

import subprocess
import sys

from .places import DOCS, ROOT

# Words of ours that look like misspellings of others.
WORDS = ("te", "fulfilment")


def test_the_pages_are_spelt_well():
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words-list", ",".join(WORDS)]
    files = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "llms.txt"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
