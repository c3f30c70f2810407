"""FastMCP's proxy as its documentation shows it: `fastmcp_proxy.py PORT URL`, or a command in its place."""
# pyright: basic, reportMissingImports=false

import os
import sys

from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
from http_options import serve

port, *target = sys.argv[1:]
child = StdioTransport(target[0], target[1:], env=dict(os.environ)) if len(target) > 1 else None

if __name__ == "__main__":
    serve(create_proxy(child or target[0]).http_app(), int(port))
