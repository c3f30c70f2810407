"""MCP, the base protocol, in every version from 2024-11-05 to 2026-07-28.

`versions` is the only place that says what a version has. Every answer is shaped by the `Dialect` of its peer, so a
client is never sent what its version does not know. `extension` puts the features together, and the server imports it.
"""
