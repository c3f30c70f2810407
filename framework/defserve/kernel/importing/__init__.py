"""An mgp.toml made from the settings of an MCP client.

It guesses nothing and grants nothing. Literal secrets are left out, and a comment names the variables that
take their place.

May import: `host.addresses`, `host.clients`, `kernel.config.fields`, `kernel.config.variables`, `tooling.clients`,
`tooling.export.mgp_entry`.
"""
