"""A tool whose result a host shows as a view: HTML that listens to the tool, and calls another one back."""

from pathlib import Path

from pydantic import BaseModel

from defserve import Server, ToolError

server = Server("weather-app", "1.0.0")

FORECASTS = {
    "Oslo": [("Mon", 4), ("Tue", 7), ("Wed", 9), ("Thu", 6), ("Fri", 3)],
    "Lagos": [("Mon", 29), ("Tue", 31), ("Wed", 30), ("Thu", 28), ("Fri", 30)],
}


class Day(BaseModel):
    """The highest temperature of a day."""

    name: str
    degrees: int


class Forecast(BaseModel):
    """The next days in a city. `unit` is C or F."""

    city: str
    unit: str
    days: list[Day]


@server.app("ui://weather-app/forecast", border=True)
def forecast_view() -> Path:
    """The forecast as bars, with a button that changes the unit."""
    return Path("weather_app.html")


@server.tool(app=forecast_view)
def forecast(city: str) -> Forecast:
    """The weather of the next days.

    Args:
        city: Oslo or Lagos.
    """
    return look_up(city, "C")


@server.tool(visible_to="app")
def convert(city: str, unit: str) -> Forecast:
    """The same forecast in another unit. A button of the view calls it; the model does not see it.

    Args:
        city: Oslo or Lagos.
        unit: C or F.
    """
    return look_up(city, unit)


def look_up(city: str, unit: str) -> Forecast:
    if city not in FORECASTS:
        raise ToolError(f"There is no forecast for {city}; there are {', '.join(FORECASTS)}.")
    days = [Day(name=name, degrees=to_unit(celsius, unit)) for name, celsius in FORECASTS[city]]
    return Forecast(city=city, unit=unit, days=days)


def to_unit(celsius: int, unit: str) -> int:
    return round(celsius * 9 / 5 + 32) if unit == "F" else celsius


if __name__ == "__main__":
    server.main()
