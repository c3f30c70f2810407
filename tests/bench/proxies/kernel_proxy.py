"""`defserve kernel` as its documentation shows it: `kernel_proxy.py PORT mgp.toml`."""

import sys

from defserve.cli.commands.kernel import main

if __name__ == "__main__":
    sys.exit(main(["--config", sys.argv[2], "--on", f"http://127.0.0.1:{sys.argv[1]}/mcp"]))
