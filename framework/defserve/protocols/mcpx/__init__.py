"""MCPx: topics, where servers, agents and people talk through a gateway.

Nothing is sent that the gateway's welcome did not allow, and nothing is acted on whose kind does not match its payload.
A server takes part without a change to its code.

May import: `auth.principals`, `core`, `wire`.
"""
