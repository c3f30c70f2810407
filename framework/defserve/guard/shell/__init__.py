"""Judges a shell command before it is run: `judge(command, allowed=…)` gives a Verdict.

The command is split into words as a shell would do it, and each program is checked against what is known of it.
Nothing is run.

May import: `guard.text`, `guard.verdict`.
"""

from defserve.guard.shell.judgement import judge

__all__ = ["judge"]
