"""An API of somebody else: one client with a key, another try when the API is busy, errors that a model understands."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from httpx2 import AsyncClient, Response, TransportError
from pydantic import BaseModel

from defserve import Context, Server, ToolError, UsageError, moderate

BUSY, PAUSES = {429, 502, 503, 504}, [0.5, 2.0, 5.0]  # seconds before each further try


class Forecast(BaseModel):
    city: str
    degrees: float


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[AsyncClient]:
    key = os.environ.get("WEATHER_KEY")
    if not key:
        raise UsageError("WEATHER_KEY is not set", fix="export WEATHER_KEY=…, the key from your account")
    url = os.environ.get("WEATHER_URL", "https://weather.example.com/v1")
    async with AsyncClient(base_url=url, headers={"X-Api-Key": key}, timeout=10) as api:
        yield api


server = Server("weather", "1.0.0", lifespan=lifespan)


async def get(api: AsyncClient, path: str, params: dict[str, str]) -> Response:
    for pause in [*PAUSES, None]:
        try:
            response = await api.get(path, params=params)
        except TransportError:
            response = None
        if response is not None and response.status_code not in BUSY:
            return response
        if pause is not None:
            await asyncio.sleep(pause)
    raise ToolError("The weather service does not answer. Try again in a few minutes.")


@server.tool(timeout=60)
@moderate("network.outbound")
async def forecast(city: Annotated[str, "Its English name."], ctx: Context) -> Forecast:
    """Tomorrow's weather in a city."""
    response = await get(ctx.lifespan, "/forecast", {"city": city})
    if response.status_code == 404:
        raise ToolError(f"There is no city {city!r}. Give its English name.")
    response.raise_for_status()
    return Forecast.model_validate(response.json())


if __name__ == "__main__":
    server.main()
