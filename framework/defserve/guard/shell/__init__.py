"""Judges a shell command before it is run: `judge(command, allowed=…)` gives a Verdict.

The command is cut into words as a shell would, and each program is held against what is known of it. Nothing is run.

May import: `guard.text`, `guard.verdict`.
"""

from defserve.guard.shell.judgement import judge

__all__ = ["judge"]
