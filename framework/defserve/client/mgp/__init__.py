"""MGP for a host: `Mgp` has the options, `MgpPeer` is one server. Each feature has a module.

Every tool call is validated, permitted and confirmed before it is sent, also to a server without MGP. A server's
declarations can make the host more careful, never less.
"""
