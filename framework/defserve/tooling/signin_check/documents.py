"""Documents that servers and issuers publish."""

from __future__ import annotations

import json
from typing import Any

from defserve.auth.issuers.fetching import HttpRequest, Send
from defserve.auth.urls import checked_url
from defserve.errors import UsageError
from defserve.wire.jsonvalue import is_object


async def document_at(url: str, ask: Send) -> tuple[dict[str, Any] | None, str]:
    """The JSON object at a URL; or why there is none."""
    try:
        checked_url(url, "it", query=True)
        answer = await ask(HttpRequest(url))
        if answer.status != 200:
            return None, f"status {answer.status}"
        found: Any = json.loads(answer.body)
    except UsageError as error:
        return None, error.problem
    except (OSError, ValueError, RecursionError) as error:
        return None, str(error) or type(error).__name__
    return (found, "") if is_object(found) else (None, "not a JSON object")
