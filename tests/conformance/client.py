"""The program that the client scenarios of the official suite start: `python -m tests.conformance.client URL`.

The suite plays the server and watches what our client does. It says in the environment which scenario it plays, in
which version of the protocol, and with which data. `SCENARIOS` has what the client does in each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from defserve.host import Accept, Answers, Client, Remote, UnverifiedSkill

Json = dict[str, Any]
Play = Callable[[Client, Json], Awaitable[None]]


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
    play = SCENARIOS[os.environ["MCP_CONFORMANCE_SCENARIO"]]
    data = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    answers = Answers(ask=lambda message, schema: Accept, sample=lambda params: "text", roots=["file:///tmp"])
    version = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    async with Remote(url).connect(version, answers=answers) as client:
        await play(client, data)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
