"""What servers and clients do about identity without their protections. How to write one: `controls/__init__.py`."""

from __future__ import annotations
