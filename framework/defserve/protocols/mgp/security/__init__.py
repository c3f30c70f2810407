"""Tool security (MGP §4): what a tool declares, by marks and by the types of its parameters, and who enforces it.

A declaration is read once, at registration, and contradictions are refused there. Every refused call is refused before
the function runs, for every peer.

May import: `binding.functions`, `guard`, `net`, `wire`, `protocols.mcp`.
"""
