"""Discovery (MGP §15): which servers there are behind a kernel, and how one is added and removed while it runs.

The section reads and bounds what peers send. Who may do what, and how, is up to the `Directory` behind it.

May import: `core`, `wire`, `binding.arguments.explicit`, `binding.packers`, `binding.results`, `guard.text`,
`protocols.mcp`, `protocols.mgp.agreed`, `protocols.mgp.security.vocabulary`.
"""
