from __future__ import annotations

import os
import subprocess
import sys

from tests.soak.sampling import usage


def test_what_a_child_uses_is_not_growth_of_its_parent():
    before = usage([os.getpid()])
    with subprocess.Popen([sys.executable, "-c", "import sys; x = bytearray(80 << 20); print(); sys.stdin.read()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # fmt: skip
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        beside = usage([os.getpid()])
        child.stdin.close()
    assert beside["processes"] == before["processes"] + 1
    assert beside["memory"] < before["memory"] + 40, (before, beside)
