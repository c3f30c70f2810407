"""Judges URLs and addresses before anything connects to them: `judge(url, …)` gives a Verdict.

Only the text is looked at. Nothing is resolved or opened.

May import: `guard.verdict`.
"""

from defserve.guard.network.urls import judge

__all__ = ["judge"]
