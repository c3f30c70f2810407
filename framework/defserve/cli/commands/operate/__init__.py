"""Commands for who operates a server: keys, the audit log, state, calls as they happen, what is installed.

May import: `auth.api_keys`, `cli`, `host`, `protocols.mcp.asking.server_secret`, `protocols.mcpl.vocabulary`,
`runner.fastpath`, `sandbox.layers`, `stores.adopting`, `stores.audit`, `stores.identity`, `stores.open`, `tooling`.
"""
