"""MCP, the base protocol, in every version from 2024-11-05 to 2026-07-28.

`versions` is the only place that says what a version has. Every answer is shaped by the `Dialect` of its peer, so a
client is never sent what its version does not know. The extension folds the rooms and is imported by the server.

May import: `binding`, `core`, `wire`.
"""
