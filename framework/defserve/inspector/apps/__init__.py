"""Views of a server (MCP apps) at the page: where their documents come from, what they may reach, what they ask for.

A view is code of a server that is not trusted. Its document comes from a second port, in a sandbox without an origin.
It reaches what its policy names and never this inspector. What it asks for and has an effect, the person allows.

May import: `auth.urls`, `host`, `inspector.protocol`, `inspector.questions`, `transports.asgi`, `wire.messages`.
"""
