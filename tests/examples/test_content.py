from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio


@pytest.mark.req("MCP-5.1c")
async def test_every_kind_of_content_arrives_as_what_it_is(connect_to: ConnectTo):
    async with connect_to("content") as client:
        (picture,) = await client.call("picture")
        assert (picture["type"], picture["mimeType"]) == ("image", "image/png")
        assert b64decode(picture["data"]).startswith(b"\x89PNG")

        (sound,) = await client.call("sound")
        assert (sound["type"], sound["mimeType"]) == ("audio", "audio/wav")
        assert b64decode(sound["data"]).startswith(b"RIFF")

        assert await client.call("signpost") == [
            {
                "type": "resource_link",
                "uri": "text://welcome",
                "name": "welcome",
                "title": "Welcome",
                "mimeType": "text/plain",
                "annotations": {"audience": ["user"]},
            }
        ]
        assert await client.call("enclosure") == [
            {
                "type": "resource",
                "resource": {"uri": "text://enclosed", "mimeType": "text/plain", "text": "enclosed"},
            }
        ]
        assert await client.call("report") == [
            {
                "type": "resource",
                "resource": {"uri": "file:///report.csv", "mimeType": "text/csv", "text": "city,degrees\nOslo,21\n"},
            }
        ]
