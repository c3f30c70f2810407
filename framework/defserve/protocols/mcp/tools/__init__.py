"""Tools: declared, listed, validated and called.

What a tool does wrong is a result that the model reads; only what is wrong with the request is an error.

May import: `binding.packers`, `binding.results`, `core`, `protocols.mcp.content`, `protocols.mcp.failures`,
`protocols.mcp.function`, `protocols.mcp.items`, `protocols.mcp.lifecycle`, `protocols.mcp.listing`,
`protocols.mcp.params`, `wire.messages`.
"""
