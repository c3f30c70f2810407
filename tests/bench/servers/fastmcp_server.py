"""FastMCP as its documentation shows it, banner off; `run_in_thread=False` is its inline kind."""
# pyright: basic, reportMissingImports=false

import sys

from fastmcp import FastMCP
from shapes import tools_of

server = FastMCP("bench")
for function, kind in tools_of(sys.argv[1]):
    server.tool(function, run_in_thread=kind != "inline")

if __name__ == "__main__":
    server.run("stdio", show_banner=False)
