"""`Server`: what an author declares, folded, and handed to whatever serves it.

Decorators return the author's function unchanged. A mistake is a UsageError with file and line when it is declared.
Verbs of a protocol are spelled here and handed to its section; protocols that a server does not use are not imported.

May import: `auth`, `binding.annotations`, `binding.functions`, `context`, `core`, `host`, `protocols`,
`runner.arguments`, `runner.memory`, `serving`, `stores.open`, `stores.store`, `transports.http.app`.
"""
