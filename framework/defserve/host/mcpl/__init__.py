"""MCPL for a host: `Mcpl` has the options, `McplPeer` is one server. Each feature has a file or a folder.

A feature gets a few methods of the client and the policy of feature sets, not the client itself. Everything the host
does or refuses for a server is audited. A server that does not speak MCPL gets no MCPL messages.

May import: `host.answers`, `host.audit`, `host.caller`, `host.conversation`, `host.eras`, `host.fields`, `host.person`,
`protocols.mcp`, `protocols.mcpl`, `protocols.mgp.audit`, `protocols.mgp.instants`, `stores.checkpoints.patches`,
`wire`.
"""
