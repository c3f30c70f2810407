"""Lifecycle and health (MGP §11): the states of a server, its checks, and a shutdown that lets calls finish.

A ping and a shutdown are answered at once, whatever else runs. A check never raises and never takes longer than its
timeout.

May import: `core`, `wire`, `auth.authority`, `auth.principals`, `sandbox.layers`, `protocols.mcp`,
`protocols.mgp.access.policy`, `protocols.mgp.audit`, `protocols.mgp.errors`, `protocols.mgp.instants`.
"""
