"""The audit trail (MGP §6): what happened, to which target, and who caused it.

Every event goes to all sinks, and to a peer that negotiated it. It holds the size and a fingerprint of the arguments,
never the arguments. A dangerous call is recorded before it runs. If it cannot be recorded, it does not run.

May import: `auth.authority`, `core`, `wire`, `stores.audit`, `protocols.mcp`, `protocols.mgp.agreed`,
`protocols.mgp.instants`, `protocols.mgp.security`.
"""
