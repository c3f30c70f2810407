"""Scopes (MCPL §7): where a scoped tool may act.

The label of a call is computed from its arguments and matched against the host's lists, the blacklist first. What is on
neither list runs only if the host or its user approves.

May import: `auth.authority`, `core`, `wire`, `protocols.mcp`, `protocols.mcpl.errors`, `protocols.mcpl.feature`,
`protocols.mcpl.policies`.
"""
