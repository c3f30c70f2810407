"""How the page writes numbers and times, run by Node where there is one."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from defserve import inspector

NODE = shutil.which("node")
FORMAT = Path(inspector.__file__).parent / "page" / "format.js"
SCRIPT = """
import { roundStep, since } from "./format.mjs";
const least = [0.0004, 0.003, 0.07, 0.3, 0.6, 7, 40, 100, 400, 5000, 90000];
const times = [0.005, 0.5, 1.5, 30, 60, 100, 119.9999999, 3600, 5400, 90000];
console.log(JSON.stringify([least.map(roundStep).map(each => Number(each.toPrecision(6))), times.map(since)]));
"""


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_ticks_are_numbers_that_people_say(tmp_path: Path):
    shutil.copy(FORMAT, tmp_path / "format.mjs")
    command = [str(NODE), "--input-type=module", "-e", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=50)
    steps, words = json.loads(done.stdout)
    assert steps == [0.0005, 0.005, 0.1, 0.5, 1, 10, 60, 120, 600, 7200, 172800]
    assert words == [
        "+5 ms",
        "+500 ms",
        "+1.5 s",
        "+30 s",
        "+1 min",
        "+1 min 40 s",
        "+2 min",
        "+1 h",
        "+1 h 30 min",
        "+1 d 1 h",
    ]


@pytest.mark.skipif(NODE is None, reason="needs Node")
def test_a_word_is_quoted_as_a_shell_reads_it(tmp_path: Path):
    words = ["server.py", "a b", "it's", "$(id)", "; id", "", "-", "\u00e9"]
    shutil.copy(FORMAT, tmp_path / "format.mjs")
    script = 'import { quoted } from "./format.mjs"; console.log(JSON.parse(process.argv[1]).map(quoted).join(" "));'
    command = [str(NODE), "--input-type=module", "-e", script, json.dumps(words)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=50)
    assert shlex.split(done.stdout) == words and done.stdout.startswith("server.py ")
