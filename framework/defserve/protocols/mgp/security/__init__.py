"""Tool security (MGP §4): what a tool declares with marks and with the types of its parameters, and the checks.

A declaration is read once, at registration. Contradictions are refused there. A call is refused before the function
runs, for every peer.

May import: `binding.arguments.schema`, `binding.functions`, `guard`, `net`, `wire`, `protocols.mcp`.
"""
