"""`Server`: an author declares tools, resources and prompts on it; it composes them and hands them to a runner.

Decorators return the author's function unchanged. A wrong declaration raises UsageError with file and line. Each verb
of a protocol is one line that calls its section. Protocols that a server does not use are not imported.

May import: `auth`, `binding.annotations`, `binding.functions`, `context`, `core`, `host`, `protocols`,
`runner.arguments`, `runner.memory`, `serving`, `stores.open`, `stores.store`, `transports.http.app`.
"""
