"""defserve as its documentation shows it."""

import sys

from shapes import tools_of

from defserve import Server

server = Server("bench")
for function, kind in tools_of(sys.argv[1]):
    server.tool(inline=kind == "inline")(function)

if __name__ == "__main__":
    server.run(on="stdio:")
