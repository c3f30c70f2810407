"""Runs a module in a process without a protection: `python -m tests.attack.controls defserve run …`.

The variable ATTACK_WITHOUT names the removal, such as `tests.attack.controls.http:take_any_host`.
"""

from __future__ import annotations

import runpy
import sys

from tests.attack.controls.patching import remove_named

if __name__ == "__main__":
    remove_named()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
