"""`Server` collects what an author declares, combines it once, and puts it on an address.

Decorators return the author's function unchanged. A mistake is a UsageError with file and line when it is declared.
A protocol's methods on `Server` only hand over to that protocol. Protocols that a server does not use are not imported,
and nothing is imported for an address that is not used. A server on the network does not start if a tool needs scopes
and no `auth` could grant them.

Logs, metrics and spans are extensions that watch requests from outside. None is active unless it is switched on.
Arguments and results are never kept.
"""
