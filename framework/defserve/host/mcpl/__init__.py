"""MCPL for a host: `Mcpl` has the options, `McplPeer` is one server. Each feature has a file or a folder.

A feature is given a few verbs of the client and the policy of feature sets, not the client itself. What the host does
or refuses for a server is audited. A server that does not speak MCPL is sent nothing of it.

May import: `host.answers`, `host.audit`, `host.caller`, `host.conversation`, `host.eras`, `host.fields`, `host.person`,
`protocols.mcp`, `protocols.mcpl`, `protocols.mgp.audit`, `protocols.mgp.instants`, `stores.checkpoints.patches`,
`wire`.
"""
