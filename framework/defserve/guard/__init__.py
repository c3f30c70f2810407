"""Judges what comes from outside: commands, URLs, paths and code. Each `judge(…)`, as in `shell`, gives a Verdict.

A judge looks at text, does no I/O, never raises, and says what would be allowed instead. Only `shell` looks at the
disk, if it is told a `root`. `argument_types` are parameter types that are judged before the function runs. `paths`
can also open what it judged, `http_client` fetch it, and `uploads` read files that a caller sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from defserve.base.exports import make_lazy_getattr

if TYPE_CHECKING:
    from defserve.guard.argument_types import Code, FileTypes, PublicUrl, Shell, ShellCommand, Upload, Url, Within
    from defserve.guard.network import Egress
    from defserve.guard.verdict import Verdict
else:
    __getattr__ = make_lazy_getattr(
        __name__,
        {
            "defserve.guard.argument_types": "Code FileTypes PublicUrl Shell ShellCommand Upload Url Within",
            "defserve.guard.network": "Egress",
            "defserve.guard.verdict": "Verdict",
        },
    )

__all__ = [
    "Code",
    "Egress",
    "FileTypes",
    "PublicUrl",
    "Shell",
    "ShellCommand",
    "Upload",
    "Url",
    "Verdict",
    "Within",
]
