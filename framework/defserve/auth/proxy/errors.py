"""What an OAuth client is answered if its request is refused (RFC 6749 §4.1.2.1, §5.2; RFC 7591 §3.2.2)."""

from __future__ import annotations

from typing import Final

STATUS: Final = {"invalid_client": 401, "temporarily_unavailable": 503, "server_error": 500}


class OAuthError(Exception):
    """A refusal: the error's name, and words for whoever develops the client. They never hold what was sent."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error, self.description = error, description

    @property
    def status(self) -> int:
        return STATUS.get(self.error, 400)

    @property
    def fields(self) -> dict[str, str]:
        return {"error": self.error, "error_description": self.description}


class SignInRefused(Exception):
    """A refusal that must not be sent to the client, because it is not certain who the client is. A page says it."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.text, self.status = text, status
