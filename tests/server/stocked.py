"""A server with one of each kind, to add to and to take from."""

from __future__ import annotations

from defserve import Server


def stocked() -> Server:
    server = Server("s", "1")

    def first() -> str:
        return "first"

    def named(name: str) -> str:
        return name

    server.add_tool(first)
    server.add_prompt(first)
    server.add_resource(first, "x://first")
    server.add_resource(named, "x://t/{name}")
    return server
