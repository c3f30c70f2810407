"""The example's function beside a web server of this machine, which the test opens to it: exactly one `host:port`."""

import sys
from typing import Annotated

from defserve import Context, PublicUrl, Server, Url, moderate
from defserve.guard.network import Egress
from examples import web_fetch


def make(authority: str) -> Server:
    server = Server("web-fetch", "1.0.0", granted=["network.outbound"], egress=Egress(private=[authority]))

    @server.tool
    @moderate("network.outbound", effects=["network"])
    async def fetch(url: Annotated[PublicUrl, Url(private=(authority,))], ctx: Context, characters: int = 5_000) -> str:
        return await web_fetch.fetch(url, ctx, characters)

    return server


if __name__ == "__main__":
    make(sys.argv.pop()).main()
