"""FastMCP over HTTP as its documentation shows it; `json` makes it answer with JSON, not events."""
# pyright: basic, reportMissingImports=false

import sys

from fastmcp import FastMCP
from http_options import serve
from shapes import tools_of

server = FastMCP("bench")
for function, kind in tools_of("calls"):
    server.tool(function, run_in_thread=kind != "inline")

if __name__ == "__main__":
    serve(server.http_app(json_response="json" in sys.argv), int(sys.argv[1]))
