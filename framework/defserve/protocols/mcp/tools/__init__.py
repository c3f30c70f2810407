"""Tools: declared, listed, validated and called.

A tool that fails gives a result, which the model reads. Only a faulty request is an error.

May import: `binding.arguments.compact`, `binding.packers`, `binding.results`, `core`, `protocols.mcp.content`,
`protocols.mcp.failures`,
`protocols.mcp.function`, `protocols.mcp.items`, `protocols.mcp.lifecycle`, `protocols.mcp.listing`,
`protocols.mcp.params`, `protocols.mcp.trace`, `wire.messages`.
"""
