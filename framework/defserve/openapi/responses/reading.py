"""The body of a response as a result: JSON as structured content, text as text, the rest as pictures and files."""

from __future__ import annotations

import json
from typing import Any, Final

from defserve.binding.content import Audio, Embedded, Image
from defserve.binding.packers import PackedResult
from defserve.errors import ToolError
from defserve.openapi.requests.sending import ApiResponse
from defserve.openapi.schemas.texts import cleaned

LONGEST_ERROR: Final = 2_000
MASK: Final = "[redacted]"


def read(response: ApiResponse, url: str, secrets: tuple[str, ...]) -> PackedResult:
    """The result of a response. Raises ToolError for one that says that something went wrong."""
    if response.status >= 300:
        raise failure(response, secrets)
    media = response.media
    if not response.body:
        return PackedResult(f"Done ({response.status}).")
    if is_json(media):
        text = hidden(response.text, secrets)
        try:
            return PackedResult(text, json.loads(text))
        except (ValueError, RecursionError):
            return PackedResult(text)
    if media.startswith("text/") or media.endswith(("/xml", "+xml", "/yaml", "/javascript")):
        return PackedResult(hidden(response.text, secrets))
    if media.startswith("image/") and "+" not in media:
        return PackedResult([Image(response.body, media)])
    if media.startswith("audio/"):
        return PackedResult([Audio(response.body, media)])
    return PackedResult([Embedded(url, data=response.body, mime_type=media or "application/octet-stream")])


def is_json(media: str) -> bool:
    return media in ("application/json", "text/json") or media.endswith("+json")


def failure(response: ApiResponse, secrets: tuple[str, ...]) -> ToolError:
    """What a model reads of a failed request: the status, and the beginning of what the API says about it."""
    said = hidden(response.text, secrets) if response.body else ""
    said = cleaned(said, LONGEST_ERROR) if response.media != "text/html" else ""
    head = f"The API answers {response.status} {cleaned(response.reason, 60)}".rstrip()
    if 300 <= response.status < 400:
        said = "it redirects to another address, which is not followed"
    data: dict[str, Any] = {"status": response.status}
    if wait := response.headers.get("retry-after", ""):
        data["retry_after"] = cleaned(wait, 40)
        head += f" (try again after {data['retry_after']}{' s' if wait.isdecimal() else ''})"
    return ToolError(f"{head}: {said}" if said else f"{head}.", data=data)


def hidden(text: str, secrets: tuple[str, ...]) -> str:
    """A text without the credentials that were sent: some APIs repeat them."""
    for secret in secrets:
        if len(secret) >= 4 and secret in text:
            text = text.replace(secret, MASK)
    return text
