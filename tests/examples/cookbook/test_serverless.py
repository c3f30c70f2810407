from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.at_address import fresh
from tests.auth.web import stateless

pytestmark = pytest.mark.anyio


async def answered(host: str, body: dict[str, Any], headers: dict[str, str]) -> httpx2.Response:
    """What a new instance answers to one request. Nobody told it that it starts, as on platforms for functions."""
    fresh("cookbook.serverless")
    from examples.cookbook import serverless

    app: Any = serverless.app
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=f"http://{host}") as http:
        return await http.post("/", json=body, headers=headers)


async def test_each_request_may_meet_another_instance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PUBLIC_HOST", "words.example.com")
    for text, longest in (("to be or not", "not"), ("a longer word", "longer")):
        body, headers = stateless("tools/call", name="count_words", arguments={"text": text})
        found = await answered("words.example.com", body, headers)
        assert found.json()["result"]["structuredContent"]["longest"] == longest
    body, headers = stateless("tools/list")
    assert (await answered("evil.example.com", body, headers)).status_code == 421


async def test_a_client_that_needs_a_session_is_told_so():
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    refused = await answered("localhost", opening, {"accept": "application/json, text/event-stream"})
    assert "session" in refused.json()["error"]["message"]


# -- AWS Lambda: events as its three front doors send them


def make_http_api_event(body: str, headers: dict[str, str]) -> dict[str, Any]:
    """API Gateway's HTTP API, and function URLs: format 2.0."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/",
        "rawQueryString": "",
        "headers": {
            **headers,
            "x-forwarded-for": "203.0.113.9",
            "x-forwarded-port": "443",
            "x-forwarded-proto": "https",
        },
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "r3pmxmplak",
            "domainName": headers["host"],
            "domainPrefix": "words",
            "http": {
                "method": "POST",
                "path": "/",
                "protocol": "HTTP/1.1",
                "sourceIp": "203.0.113.9",
                "userAgent": "agent/1",
            },
            "requestId": "JKJaXmPLvHcESHA=",
            "routeKey": "$default",
            "stage": "$default",
            "time": "10/Mar/2026:05:16:23 +0000",
            "timeEpoch": 1773119783000,
        },
        "body": base64.b64encode(body.encode()).decode(),
        "isBase64Encoded": True,
    }


def make_rest_api_event(body: str, headers: dict[str, str]) -> dict[str, Any]:
    """API Gateway's REST API: format 1.0."""
    return {
        "resource": "/",
        "path": "/",
        "httpMethod": "POST",
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "pathParameters": None,
        "stageVariables": None,
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "id",
            "domainName": headers["host"],
            "httpMethod": "POST",
            "identity": {"sourceIp": "203.0.113.9", "userAgent": "agent/1"},
            "path": "/",
            "protocol": "HTTP/1.1",
            "requestId": "id=",
            "resourcePath": "/",
            "stage": "$default",
        },
        "body": body,
        "isBase64Encoded": False,
    }


def make_load_balancer_event(body: str, headers: dict[str, str]) -> dict[str, Any]:
    """An application load balancer with a Lambda target."""
    group = (
        "arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/lambda-279XGJDqGZ5rsrHC2Fjr/49e9d65c45c6791a"
    )
    return {
        "requestContext": {"elb": {"targetGroupArn": group}},
        "httpMethod": "POST",
        "path": "/",
        "queryStringParameters": {},
        "headers": {
            **headers,
            "x-forwarded-for": "203.0.113.9",
            "x-forwarded-port": "443",
            "x-forwarded-proto": "https",
        },
        "body": body,
        "isBase64Encoded": False,
    }


class LambdaContext:
    """What Lambda gives a handler beside the event."""

    function_name = "words"
    aws_request_id = "8f507cfc-xmpl-4697-b07a-ac58fc914c95"


@pytest.mark.usefixtures("own_loop")
@pytest.mark.parametrize("make_event", [make_http_api_event, make_rest_api_event, make_load_balancer_event])
def test_lambda_answers_events_of_each_front_door(
    make_event: Callable[[str, dict[str, str]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PUBLIC_HOST", "words.example.com")
    fresh("cookbook.serverless")
    from examples.cookbook.serverless import handler

    context: Any = LambdaContext()

    def ask(host: str, text: str) -> dict[str, Any]:
        body, headers = stateless("tools/call", name="count_words", arguments={"text": text})
        sent = {"content-type": "application/json", **{name.lower(): value for name, value in headers.items()}}
        return handler(make_event(json.dumps(body), {**sent, "host": host}), context)

    # An instance answers several events, one after the other.
    for text, longest in (("to be or not", "not"), ("a longer word", "longer"), ("", "")):
        answer = ask("words.example.com", text)
        assert answer["statusCode"] == 200 and answer["isBase64Encoded"] is False
        assert json.loads(answer["body"])["result"]["structuredContent"]["longest"] == longest
    assert ask("evil.example.com", "x")["statusCode"] == 421
