"""URLs of strangers, fetched: never an address of your own network, however it is written or redirected to.

`PublicUrl` refuses such a URL before the function runs; `ctx.http` connects to the address that was judged and judges
every redirect again.
"""

from defserve import Context, PublicUrl, Server, ToolError, moderate

# Whoever can reach this server may fetch: also a stranger on the network, to whom nothing is granted otherwise.
server = Server("web-fetch", "1.0.0", granted=["network.outbound"])


@server.tool
@moderate("network.outbound", effects=["network"])
async def fetch(url: PublicUrl, ctx: Context, characters: int = 5_000) -> str:
    """Fetch a public web page as text.

    Args:
        url: Its address, http or https.
        characters: How much of it is wanted.
    """
    response = await ctx.http.get(url)
    if response.is_error:
        raise ToolError(f"{url} answered {response.status_code}")
    return response.text[:characters]


if __name__ == "__main__":
    server.main()
