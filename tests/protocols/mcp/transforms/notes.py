"""A server of notes, to be mounted: in this process, or as a script."""

from defserve import Server, dangerous

server = Server("notes")


@server.tool(tags=["public"])
def search(query: str, folder: str = "all", limit: int = 10) -> str:
    "Search notes."
    return f"{query} in {folder}, {limit}"


@server.tool(tags=["admin"])
@dangerous
def wipe(folder: str) -> str:
    return f"{folder} wiped"


@server.tool
def ping() -> str:
    return "pong"


if __name__ == "__main__":
    server.run()
