"""A function of the cloud, without sessions: `app` for platforms that run ASGI apps, `handler` for AWS Lambda."""

import os
from typing import Annotated

from mangum import Mangum
from pydantic import BaseModel

from defserve import Server, safe

server = Server("words", "1.0.0", secret=os.environ.get("DEFSERVE_SECRET"))


class Count(BaseModel):
    words: int
    longest: str


@server.tool
@safe
def count_words(text: Annotated[str, "Words with spaces between them."]) -> Count:
    """Count the words of a text, and find its longest."""
    found = text.split()
    return Count(words=len(found), longest=max(found, key=len, default=""))


app = server.asgi(stateless=True, allowed_hosts=[os.environ.get("PUBLIC_HOST", "localhost")])
handler = Mangum(app, lifespan="off")
