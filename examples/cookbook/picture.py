"""A chart as a picture: a PNG, drawn with the standard library. Clients show it, models see it."""

import struct
import zlib
from typing import Annotated

from pydantic import Field

from defserve import Image, Server, safe

server = Server("charts", "1.0.0")

HEIGHT, BAR, GAP = 120, 16, 4
WHITE, BLUE = b"\xff\xff\xff", b"\x33\x66\xcc"


def png(rows: list[bytes]) -> bytes:
    """Rows of pixels, three bytes each, as a PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@server.tool
@safe
def bar_chart(
    values: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1, max_length=50)],
) -> list[str | Image]:
    """Draw a bar chart.

    Args:
        values: The heights of the bars, from left to right.
    """
    highest = max(values) or 1
    tops = [round(value / highest * HEIGHT) for value in values]
    rows = [
        b"".join((BLUE if top >= level else WHITE) * BAR + WHITE * GAP for top in tops)
        for level in range(HEIGHT, 0, -1)
    ]
    return [f"{len(values)} bars; the highest is {highest:g}", Image(png(rows), "image/png")]


if __name__ == "__main__":
    server.main()
