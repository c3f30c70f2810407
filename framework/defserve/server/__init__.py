"""`Server` collects what an author declares, combines it once, and passes it to whatever serves it.

Decorators return the author's function unchanged. A mistake is a UsageError with file and line when it is declared.
A protocol's methods on `Server` only hand over to that protocol. Protocols that a server does not use are not imported.

May import: `auth`, `binding.annotations`, `binding.functions`, `binding.injection`, `binding.option_rules`,
`binding.signature`, `code_mode`, `context`, `core`, `host`, `net.egress`, `openapi`, `protocols`, `proxying`,
`runner.command_line`, `runner.memory`, `search.options`, `serving`, `stores.identity`, `stores.store`,
`transports.http.app`.
"""
