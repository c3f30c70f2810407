"""The official SDK as its documentation shows it. It has no inline kind: sync tools always run in a thread."""

import sys

from mcp.server.mcpserver import MCPServer
from shapes import tools_of

server = MCPServer("bench")
for function, _ in tools_of(sys.argv[1]):
    server.tool()(function)

if __name__ == "__main__":
    server.run("stdio")
