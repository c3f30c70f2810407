"""Finding tools instead of listing them all (MGP §16), for peers that speak MGP and, by meta-tools, for all others.

A search shows and counts only what its caller may see. A tool that a list leaves out is still judged, never refused
for being left out. A call by a meta-tool is the call of the tool itself: its name is replaced before anything looks.

May import: `core`, `wire`, `search`, `binding.arguments.explicit`, `binding.packers`, `binding.results`,
`protocols.mcp`, `protocols.mgp.agreed`, `protocols.mgp.audit`, `protocols.mgp.permissions`.
"""
