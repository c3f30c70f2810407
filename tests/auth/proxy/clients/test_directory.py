from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from defserve.auth.proxy.clients import ClientDirectory, ClientDocuments, clean_client_name
from defserve.auth.proxy.seals import TokenSealer
from defserve.auth.proxy.site_messages import OAuthError
from tests.rows import for_each_row

GOOD = {"redirect_uris": ["https://app.example/cb"]}


def directory(secret: bytes = b"s" * 32) -> ClientDirectory:
    return ClientDirectory(TokenSealer([secret]), ClientDocuments())


@for_each_row("kind", [float("nan"), [[[]]], {"a": 1}, "other", None])
def test_a_kind_of_application_that_is_not_known_is_not_given_back(kind: object) -> None:
    assert "application_type" not in directory().register(json.dumps({**GOOD, "application_type": kind}).encode())


def test_a_registration_is_known_to_every_process_of_one_secret_and_to_no_other() -> None:
    made = directory().register(json.dumps({**GOOD, "client_name": "App", "application_type": "native"}).encode())
    assert made["application_type"] == "native" and made["client_secret"]
    found = asyncio.run(directory().find_client(made["client_id"]))
    assert found is not None and found.name == "App" and found.redirects == ("https://app.example/cb",)
    assert asyncio.run(directory(b"t" * 32).find_client(made["client_id"])) is None
    assert asyncio.run(directory().find_client(made["client_id"][:-1])) is None


@for_each_row(
    "body, error",
    [
        (b"", "invalid_client_metadata"),
        (b"[]", "invalid_client_metadata"),
        (b"[" * 50_000, "invalid_client_metadata"),
        ({}, "invalid_redirect_uri"),
        ({"redirect_uris": "https://app.example"}, "invalid_redirect_uri"),
        ({"redirect_uris": []}, "invalid_redirect_uri"),
        ({"redirect_uris": [7]}, "invalid_redirect_uri"),
        ({"redirect_uris": ["javascript:alert(1)"]}, "invalid_redirect_uri"),
        ({"redirect_uris": [f"https://app.example/{'x' * 900}{n}" for n in range(10)]}, "invalid_client_metadata"),
        ({**GOOD, "token_endpoint_auth_method": "private_key_jwt"}, "invalid_client_metadata"),
        ({**GOOD, "token_endpoint_auth_method": 7}, "invalid_client_metadata"),
        ({**GOOD, "grant_types": ["implicit"]}, "invalid_client_metadata"),
        ({**GOOD, "response_types": ["token"]}, "invalid_client_metadata"),
    ],
    ids=range(13),
)
def test_a_registration_that_is_not_good_is_refused(body: Any, error: str) -> None:
    with pytest.raises(OAuthError) as refused:
        directory().register(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert refused.value.error == error


@for_each_row("name, shown", [("  A\n B ", "A B"), ("a\u202eb\x00", "ab"), ("x" * 200, "x" * 80), (7, ""), (None, "")])
def test_a_name_is_one_line_that_reads_as_it_is(name: Any, shown: str) -> None:
    assert clean_client_name(name) == shown
