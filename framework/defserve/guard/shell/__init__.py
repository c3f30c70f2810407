"""Judges a shell command before it is run: `judge(command, allowed=…)` gives a Verdict.

The command is split into words as a shell would do it. They are read by the grammar of the program: only options,
values and operands that are known to be harmless pass. Nothing is run.
"""

from __future__ import annotations

from defserve.guard.shell.judgement import judge

__all__ = ["judge"]
