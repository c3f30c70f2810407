"""The official SDK over HTTP as its documentation shows it; `json` makes it answer with JSON, not events."""

import sys

from http_options import serve
from mcp.server.mcpserver import MCPServer
from shapes import tools_of

server = MCPServer("bench")
for function, _ in tools_of("calls"):
    server.tool()(function)

if __name__ == "__main__":
    serve(server.streamable_http_app(json_response="json" in sys.argv), int(sys.argv[1]))
