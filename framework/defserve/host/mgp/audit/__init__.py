"""The audit trail of MGP (§6): the events of one connection, and a server that keeps them for others.

A sink that fails is logged. It never stops a call.

May import: `host.audit`, `host.caller`, `protocols.mgp`.
"""
