"""An API that you have, as tools: from its OpenAPI document, with a token that no model sees."""

import os
from pathlib import Path

from defserve import Server
from defserve.extending import Argument, Transform
from defserve.openapi import Bearer

server = Server.from_openapi(
    Path(__file__).with_name("shop.json"),
    base_url=os.environ.get("SHOP_API", "https://shop.example.com/v1"),
    auth=Bearer(os.environ.get("SHOP_TOKEN", "not set")),
    include=["tag:orders"],
    marks={"POST /orders": "dangerous"},
    transform=Transform(
        rename={"list_orders": "find_orders"},
        arguments={"list_orders": {"tenant": Argument(fixed="main"), "q": Argument(name="words")}},
    ),
    timeout=10,
    retries=2,
)


if __name__ == "__main__":
    server.main()
