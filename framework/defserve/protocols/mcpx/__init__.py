"""MCPx: topics, where servers, agents and people talk through a gateway.

We send only what the gateway's welcome allows. We act on no message whose kind does not match its payload. A server
takes part without a change to its code.
"""
