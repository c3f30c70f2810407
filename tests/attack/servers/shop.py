"""A server with something of each kind that a caller may name: tools, guarded tools, resources, prompts."""

from __future__ import annotations

from tests.protocols.test_echoes import shop

server = shop()
