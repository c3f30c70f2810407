"""What guards, sandboxes and commands do without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations

from tests.attack.controls.patching import Patch


def pass_every_command(patch: Patch) -> None:
    patch.wrap("defserve.guard.shell:judge", lambda judge: lambda command, **options: judge("true"))
