"""The OpenAPI document of listed tools, with examples that can be called as they are.

It needs only JSON, so it works for any server that answers `tools/list`. Every example is valid under its schema.

May import: `binding.arguments.explicit`, `binding.arguments.patterns`, `protocols.mcp.tools.tools`.
"""
