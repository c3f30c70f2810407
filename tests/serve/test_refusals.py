from __future__ import annotations

from defserve.serve.address import CredentialsRequired
from tests.rows import for_each_row


@for_each_row(
    ("status", "challenge", "text", "error"),
    [
        (401, "Bearer", "wants a token (HTTP 401)", ""),
        (401, 'Bearer scope="read", resource_metadata="https://a/b"', "wants a token (HTTP 401): scope read", ""),
        (401, 'Bearer error="invalid_token"', "does not take this token (HTTP 401)", "invalid_token"),
        (
            401,
            'bearer realm="x", error=invalid_token, error_description="expired"',
            "does not take this token (HTTP 401): expired",
            "invalid_token",
        ),
        (
            403,
            'Bearer error="insufficient_scope", scope="notes:read"',
            "wants a token with more scopes (HTTP 403): scope notes:read",
            "insufficient_scope",
        ),
        (401, 'Basic realm="x"', 'refuses these credentials (HTTP 401): Basic realm="x"', None),
        (401, 'Bearer error="odd"', 'refuses these credentials (HTTP 401): Bearer error="odd"', "odd"),
    ],
)
def test_a_challenge_says_what_is_wrong_with_the_token(status: int, challenge: str, text: str, error: str | None):
    found = CredentialsRequired("https://example.org/mcp", status, challenge)
    assert (found.message, found.error) == (f"https://example.org/mcp {text}", error)
    assert found.data == {"status": status, "challenge": challenge}
