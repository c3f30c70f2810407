"""A real FastAPI app as a server, called in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, File, Form, Header, HTTPException, Request, UploadFile
from fastapi.responses import Response
from pydantic import BaseModel

from defserve import Server, UsageError
from defserve.openapi import Bearer
from tests.openapi.rules import broken

pytestmark = pytest.mark.anyio


class Item(BaseModel):
    name: str
    price: float = 1.0
    tags: list[str] = []
    parent: Item | None = None


def token(authorization: Annotated[str, Header()]) -> str:
    return authorization


def shop() -> tuple[FastAPI, list[str]]:
    """An app, and the story of its life."""
    told: list[str] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        told.append("up")
        yield {"stock": {"tea": 3}}
        told.append("down")

    app = FastAPI(title="The Shop", version="7", lifespan=lifespan)

    @app.post("/items")
    def create_item(item: Item) -> Item:
        """Create an item."""
        return item

    @app.get("/stock/{name}")
    def stock(name: str, request: Request, least: int = 0) -> dict[str, Any]:
        if name not in request.state.stock:
            raise HTTPException(404, f"no {name}")
        return {"left": request.state.stock[name], "least": least, "client": request.client}

    @app.delete("/stock/{name}")
    def remove(name: str) -> Response:
        told.append(f"removed {name}")
        return Response(status_code=204)

    @app.get("/files/{path:path}")
    def read_file(path: str) -> str:
        return path

    @app.get("/files/{name}/secret")
    def secret(name: str) -> str:
        return "secret"

    @app.post("/upload")
    async def upload(files: Annotated[list[UploadFile], File()], note: Annotated[str, Form()] = "") -> dict[str, Any]:
        return {"note": note, "files": [[file.filename, (await file.read()).decode()] for file in files]}

    @app.post("/labels")
    async def label(
        file: UploadFile, tags: Annotated[list[str], Form()], sizes: Annotated[list[int], Form()]
    ) -> dict[str, Any]:
        return {"tags": tags, "sizes": sizes}

    @app.get("/me")
    def me(caller: Annotated[str, Depends(token)]) -> str:
        return caller

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("password=hunter2")

    return app, told


async def test_operations_of_an_app_are_tools() -> None:
    app, told = shop()
    server = Server.from_fastapi(app, auth=Bearer("of-the-server"))
    assert (server.name, server.version) == ("the_shop", "7") and broken(server) == []
    async with server.connect() as client:
        assert told == ["up"]
        made = await client.call("create_item", name="tea", parent={"name": "drinks"})
        assert made["parent"]["name"] == "drinks" and made["price"] == 1.0
        assert await client.call("stock", name="tea") == {"left": 3, "least": 0, "client": None}
        missing = await client.call_raw("stock", {"name": "cake"})
        assert (
            missing["isError"]
            and missing["content"][0]["text"] == 'The API answers 404 Not Found: {"detail":"no cake"}'
        )
        sent = [{"text": "one", "filename": "1.txt"}, {"base64": "dHdv", "filename": "2.txt"}]
        assert await client.call("upload", files=sent, note="two") == {
            "note": "two",
            "files": [["1.txt", "one"], ["2.txt", "two"]],
        }
        labelled = await client.call("label", file={"text": "hi"}, tags=["a", "b"], sizes=[1, 2])
        assert labelled == {"tags": ["a", "b"], "sizes": [1, 2]}
        assert "of-the-server" not in str(await client.call_raw("me"))
        assert "Bearer [redacted]" in str(await client.call_raw("me"))
        failed = await client.call_raw("broken")
        assert failed["isError"] and "hunter2" not in str(failed)
        assert await client.call("remove", name="tea") == "Done (204)." and told[-1] == "removed tea"
    assert told[-1] == "down"


async def test_one_function_for_several_methods_is_a_tool_for_each() -> None:
    app = FastAPI()

    @app.api_route("/jobs", methods=["GET", "POST", "DELETE"], tags=["work"])
    def jobs(request: Request) -> dict[str, str]:
        return {"method": request.method}

    with pytest.warns(UserWarning, match="Duplicate Operation ID"):
        server = Server.from_fastapi(app)
    async with server.connect() as client:
        for method in ("get", "post", "delete"):
            assert await client.call(f"{method}_jobs") == {"method": method.upper()}


async def test_a_value_reaches_no_other_route() -> None:
    app, told = shop()
    async with Server.from_fastapi(app).connect() as client:
        assert await client.call("read_file", path="a/b.txt") in ("a/b.txt", '"a/b.txt"')
        for name in ("tea/secret", "..", "tea%2Fsecret", "../files/x/secret", ""):
            assert (await client.call_raw("stock", {"name": name}))["isError"]
        assert (await client.call_raw("read_file", {"path": "../stock/tea"}))["isError"]
    assert told == ["up", "down"]


async def test_an_app_that_does_not_start_is_an_error() -> None:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/a")
    def a() -> str:
        return "a"

    with pytest.raises(UsageError, match="the app did not start"):
        async with Server.from_fastapi(app).connect() as client:
            await client.call("a")
    with pytest.raises(UsageError, match="is not a FastAPI app"):
        Server.from_fastapi(object())
