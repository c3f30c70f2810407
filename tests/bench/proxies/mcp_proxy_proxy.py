"""mcp-proxy as its documentation shows it: `mcp_proxy_proxy.py PORT COMMAND…`."""
# pyright: basic, reportMissingImports=false

import sys

from mcp_proxy.__main__ import main

if __name__ == "__main__":
    port, *command = sys.argv[1:]
    sys.argv[1:] = ["--port", port, "--pass-environment", "--log-level", "WARNING", "--", *command]
    main()
