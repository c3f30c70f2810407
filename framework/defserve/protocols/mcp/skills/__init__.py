"""Skills (SEP-2640): folders with a `SKILL.md`, listed with digests and read as resources.

A folder is read once, when it is declared. Digests, sizes and contents come from these bytes, so they always agree.
Symbolic links that lead out of a folder, hidden files and everything else that is not a plain file are not served.

May import: `core`, `protocols.mcp.function`, `protocols.mcp.lifecycle`, `protocols.mcp.listing`,
`protocols.mcp.params`, `protocols.mcp.resources`, `wire.messages`.
"""
