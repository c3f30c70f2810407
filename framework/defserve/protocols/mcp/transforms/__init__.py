"""Tools of others, changed on their way in: renamed, hidden, described anew, with arguments fixed or given defaults.

What is hidden cannot be called, and what is fixed cannot be sent. Checks, guards and the function itself see the names
and values of the tool as it was declared; callers, lists and the audit see those outside.

May import: `binding.arguments.schema`, `binding.arguments.explicit`, `binding.arguments.wording`,
`protocols.mcp.items`, `protocols.mcp.tools`.
"""
