"""The program that the client scenarios of the official suite start: `python -m tests.conformance.client URL`.

The suite plays the server and watches what our client does. It says in the environment which scenario it plays, in
which version of the protocol, and with which data. `SCENARIOS` has what the client does in each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from defserve.auth.oauth import NO_CHALLENGE
from defserve.client import (
    Accept,
    Answers,
    Client,
    ClientCredentials,
    CrossAppAccess,
    RemoteServer,
    SignIn,
    UnverifiedSkill,
    WorkloadIdentity,
)
from defserve.client.link import ClientAuth
from defserve.client.signin.credentials import MemoryCredentialStore
from defserve.client.signin.fetching import Fetcher, NetworkReach
from defserve.client.signin.issuer import discover_issuer

Json = dict[str, Any]
Play = Callable[[Client, Json], Awaitable[None]]
# The id of a client whose metadata is at that address; the suite never reads it.
URL_ID = "https://conformance-test.local/client-metadata.json"


async def connect(client: Client, data: Json) -> None:
    """Opening the conversation is all."""
    await client.tools()


async def add_numbers(client: Client, data: Json) -> None:
    await client.tools()
    await client.call("add_numbers", a=5, b=3)


async def elicit(client: Client, data: Json) -> None:
    await client.call_raw("test_client_elicitation_defaults")


async def reconnect(client: Client, data: Json) -> None:
    await client.tools()
    await client.call_raw("test_reconnection")


async def keep_states_apart(client: Client, data: Json) -> None:
    """One call asks and waits for an answer, and another one is made meanwhile."""
    asked, answered = asyncio.Event(), asyncio.Event()

    async def ask(message: str, schema: Json) -> Any:
        asked.set()
        await answered.wait()
        return {"confirmed": True}

    client.answers.ask = ask
    asking = asyncio.create_task(client.call_raw("test_mrtr_echo_state"))
    await asked.wait()
    await client.call_raw("test_mrtr_unrelated")
    answered.set()
    await asking
    await client.call_raw("test_mrtr_no_state")
    await client.call_raw("test_mrtr_no_result_type")


async def use_everything(client: Client, data: Json) -> None:
    """Every kind of request that is repeated in headers."""
    for tool in await client.tools():
        await client.call_raw(tool["name"])
    for resource in await client.resources():
        await client.read(resource["uri"])
    for prompt in await client.prompts():
        await client.prompt(prompt["name"])


async def make_calls(client: Client, data: Json) -> None:
    await client.tools()
    for call in data["toolCalls"]:
        await client.call_raw(call["name"], call["arguments"])


async def call_all_listed(client: Client, data: Json) -> None:
    for tool in await client.tools():
        await client.call_raw(tool["name"], {"region": "us-west1"})


async def echo_schema(client: Client, data: Json) -> None:
    tool = next(tool for tool in await client.tools() if tool["name"] == "json_schema_2020_12_tool")
    await client.call_raw("json_schema_echo", {"schema": tool["inputSchema"]})


async def list_skills(client: Client, data: Json) -> None:
    await client.skills()


async def use_skills(client: Client, data: Json) -> None:
    """Read each skill whole. A skill that is not what was listed is refused, and that is what is expected here."""
    for entry in await client.skills():
        try:
            await client.read_verified(entry)
        except UnverifiedSkill as refused:
            print(refused, file=sys.stderr)
            continue
        raise SystemExit(f"{entry['uri']} was taken for verified")


async def use_tool(client: Client, data: Json) -> None:
    await client.tools()
    await client.call_raw("test-tool")


class ObedientPerson:
    """Says yes to everything: goes where the issuer redirects to at once."""

    uri = "http://localhost:3000/callback"

    @asynccontextmanager
    async def open(self, preferred: str, mark: str) -> AsyncGenerator[ObedientPerson]:
        yield self

    async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
        return await asyncio.to_thread(self._location, url)

    def _location(self, url: str) -> str:
        parts = urlsplit(url)
        connection = HTTPConnection(parts.netloc, timeout=10)
        connection.request("GET", f"{parts.path}?{parts.query}")
        return connection.getresponse().headers["location"]


async def issuer_of(url: str, data: Json) -> str | None:
    """The issuer that the client's secret is for. Few scenarios say so; then it is looked up, as a person would."""
    if "issuer" in data or not data.keys() & {"client_secret", "private_key_pem", "valid_jwt"}:
        return data.get("issuer")
    return (await discover_issuer(url, NO_CHALLENGE, Fetcher(NetworkReach.MACHINE))).issuer.issuer


def auth_for(scenario: str, data: Json, issuer: str | None) -> ClientAuth | None:
    """How the client signs in."""
    if not scenario.startswith("auth/"):
        return None
    given = data.get("client_id", "")
    if scenario == "auth/client-credentials-jwt":
        key, algorithm = data["private_key_pem"], data["signing_algorithm"]
        return ClientCredentials(given, private_key=key, algorithm=algorithm, issuer=issuer)
    if scenario == "auth/client-credentials-basic":
        return ClientCredentials(given, data["client_secret"], issuer=issuer)
    if scenario == "auth/enterprise-managed-authorization":
        return CrossAppAccess(
            idp_token_endpoint=data["idp_token_endpoint"],
            id_token=data["idp_id_token"],
            idp_client_id=data["idp_client_id"],
            client_id=given,
            client_secret=data["client_secret"],
            issuer=issuer,
        )
    if scenario == "auth/wif-jwt-bearer":
        return WorkloadIdentity(data["valid_jwt"], client_id=given, issuer=issuer)
    return SignIn(
        client_id=given or URL_ID,
        client_secret=data.get("client_secret"),
        redirect=ObedientPerson(),
        store=MemoryCredentialStore(),
        issuer=issuer,
        dpop=scenario.startswith("auth/dpop"),
    )


SCENARIOS: dict[str, Play] = {
    "initialize": connect,
    "tools_call": add_numbers,
    "elicitation-sep1034-client-defaults": elicit,
    "sse-retry": reconnect,
    "request-metadata": connect,
    "sep-2322-client-request-state": keep_states_apart,
    "http-standard-headers": use_everything,
    "http-custom-headers": make_calls,
    "http-invalid-tool-headers": call_all_listed,
    "json-schema-ref-no-deref": connect,
    "json-schema-2020-12-preservation": echo_schema,
    "sep-2640-client-no-prefetch": list_skills,
    "sep-2640-client-verify-digest": use_skills,
    "sep-2640-client-verify-size": use_skills,
    "sep-2640-client-verify-frontmatter": use_skills,
}


async def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    play = use_tool if scenario.startswith("auth/") else SCENARIOS[scenario]
    data = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    answers = Answers(ask=lambda message, schema: Accept, sample=lambda params: "text", roots=["file:///tmp"])
    version = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    auth = auth_for(scenario, data, await issuer_of(url, data))
    async with RemoteServer(url, auth=auth).connect(version, answers=answers) as client:
        await play(client, data)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
