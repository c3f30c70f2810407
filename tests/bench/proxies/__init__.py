"""What a proxy costs: one client, one server, and nothing, the kernel, FastMCP's proxy or mcp-proxy between them.

All fronts are Streamable HTTP, all servers are the same script, as a child on stdio or at an address. `direct` is the
server at its address, so "added" is the median through a proxy less the direct one of the same round. Processor time is
that of the proxy alone, or of the server where nothing is between. mcp-proxy serves children on stdio in the handshake
era only, and needs an older SDK, so it has an environment of its own; it is left out if that cannot be installed.
"""
