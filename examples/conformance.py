"""What the official conformance suite wants to meet: names, arguments, texts and keys are the suite's, to the letter.

`make conformance` serves this file over HTTP and runs the suite against it. Not a model of naming.
"""

import asyncio
import json
from base64 import b64decode
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, Field

from defserve import Audio, Context, Embedded, Image, Server, ToolError
from defserve.errors import ProtocolError

server = Server("conformance", "1.0.0", description="The fixtures of the official conformance suite")

# A picture of one pixel and a sound of one sample.
DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg==")
CLICK = b"RIFF\x25\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\1\0\0\0\x80"

# The suite looks for messages that come one by one.
STEP_SECONDS = 0.05


# Content. The first tool of the list is also called with no arguments at all.
@server.tool
def test_simple_text() -> str:
    """Answer with a text."""
    return "This is a simple text response for testing."


@server.tool
def test_image_content() -> Image:
    """Answer with a picture."""
    return Image(DOT)


@server.tool
def test_audio_content() -> Audio:
    """Answer with a sound."""
    return Audio(CLICK)


@server.tool
def test_embedded_resource() -> Embedded:
    """Answer with a resource."""
    text = "This is an embedded resource content."
    return Embedded("test://embedded-resource", text=text, mime_type="text/plain")


@server.tool
def test_multiple_content_types() -> list[str | Image | Embedded]:
    """Answer with a text, a picture and a resource."""
    data = json.dumps({"test": "data", "value": 123})
    mixed = Embedded("test://mixed-content-resource", text=data, mime_type="application/json")
    return ["Multiple content types test:", Image(DOT), mixed]


@server.tool
def test_error_handling() -> str:
    """Fail, and tell the model so."""
    raise ToolError("This tool intentionally returns an error for testing")


# While a tool runs.
@server.tool
async def test_tool_with_progress(ctx: Context) -> str:
    """Report progress three times."""
    for done in (0, 50, 100):
        ctx.progress(done, 100)
        await asyncio.sleep(STEP_SECONDS)
    return "All of 100 done"


@server.tool
async def test_tool_with_logging(ctx: Context) -> str:
    """Log three messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        ctx.log.info(message)
        await asyncio.sleep(STEP_SECONDS)
    return "Three messages logged"


@server.tool
def test_logging_tool(ctx: Context) -> str:
    """Log a message, if the client wants any."""
    ctx.log.info("Only for a client that asked for it")
    return "Logged"


@server.tool
async def test_reconnection(ctx: Context) -> str:
    """Drop the connection; the answer is there when the client comes back."""
    ctx.drop_connection()
    await asyncio.sleep(2 * STEP_SECONDS)
    return "Reconnection test completed"


# Asking, in both eras.
@server.tool
async def test_sampling(prompt: str, ctx: Context) -> str:
    """Pass a prompt on to the client's model."""
    return f"LLM response: {(await ctx.sample(prompt, max_tokens=100)).text}"


class Account(TypedDict):
    username: Annotated[str, Field(description="User's response")]
    email: Annotated[str, Field(description="User's email address")]


@server.tool
async def test_elicitation(message: str, ctx: Context) -> str:
    """Ask the person for an account."""
    account = await ctx.ask(message, Account)
    return f"User response: action=accept, content={json.dumps(account)}"


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


@server.tool
async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    """Ask with a default for every kind of field."""
    answer = await ctx.ask("Please review and update the form fields", Defaults)
    return f"Elicitation completed: action=accept, content={answer.model_dump_json()}"


OPTIONS = ["option1", "option2", "option3"]
TITLED = [{"const": f"value{n}", "title": f"{nth} Option"} for n, nth in enumerate(("First", "Second", "Third"), 1)]
# No Python type has the deprecated `enumNames`, so this form is a JSON Schema.
ENUMS: Any = {
    "properties": {
        "untitledSingle": {"type": "string", "enum": OPTIONS},
        "titledSingle": {"type": "string", "oneOf": TITLED},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
        "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
    }
}


@server.tool
async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    """Ask with every kind of choice."""
    answer = await ctx.ask("Please select options from the enum fields", ENUMS)
    return f"Elicitation completed: action=accept, content={json.dumps(answer)}"


@server.tool
async def test_missing_capability(ctx: Context) -> str:
    """Need the client's model; a client that offers none is told so."""
    return (await ctx.sample("Say hello", max_tokens=10)).text


# Asking where every request stands alone: the suite looks for these keys in `inputRequests`.
class Name(TypedDict):
    name: str


class Colour(TypedDict):
    color: str


class Confirmation(TypedDict):
    ok: bool


class PromptContext(TypedDict):
    context: str


@server.tool
async def test_streaming_elicitation(ctx: Context) -> str:
    """Ask where the answer could be streamed."""
    ctx.progress(0, 1)
    return f"Hello, {(await ctx.ask('What is your name?', Name))['name']}!"


@server.tool
async def test_input_required_result_elicitation(ctx: Context) -> str:
    """Ask the person for a name."""
    return f"Hello, {(await ctx.ask('What is your name?', Name, key='user_name'))['name']}!"


@server.tool
async def test_input_required_result_sampling(ctx: Context) -> str:
    """Ask the client's model for a capital."""
    return (await ctx.sample("What is the capital of France?", max_tokens=100, key="capital_question")).text


@server.tool
async def test_input_required_result_list_roots(ctx: Context) -> str:
    """Ask the client for its roots."""
    return "Roots: " + ", ".join(root.uri for root in await ctx.roots(key="client_roots"))


@server.tool
async def test_input_required_result_request_state(ctx: Context) -> str:
    """Ask, and have the state brought back."""
    answer = await ctx.ask("Please confirm", Confirmation, key="confirm")
    return f"state-ok, confirmed: {answer['ok']}"


@server.tool
async def test_input_required_result_tampered_state(ctx: Context) -> str:
    """Ask, and refuse a state that is not ours."""
    answer = await ctx.ask("Please confirm", Confirmation, key="confirm")
    return f"state-ok, confirmed: {answer['ok']}"


@server.tool
async def test_input_required_result_multiple_inputs(ctx: Context) -> str:
    """Ask the person, the model and the client in one round."""
    person, greeting, roots = await ctx.gather(
        ctx.ask("What is your name?", Name, key="user_name"),
        ctx.sample("Generate a greeting", max_tokens=50, key="greeting"),
        ctx.roots(key="client_roots"),
    )
    return f"{greeting.text} {person['name']}, working in {len(roots)} roots"


@server.tool
async def test_input_required_result_multi_round(ctx: Context) -> str:
    """Ask one question after the other."""
    person = await ctx.ask("Step 1: What is your name?", Name, key="step1")
    colour = await ctx.ask("Step 2: What is your favorite color?", Colour, key="step2")
    return f"{person['name']} likes {colour['color']}"


@server.tool
async def test_input_required_result_capabilities(ctx: Context) -> str:
    """Ask only for what the client offers."""
    heard: list[str] = []
    if ctx.can("ask"):
        heard.append((await ctx.ask("What is your name?", Name, key="user_name"))["name"])
    if ctx.can("sample"):
        heard.append((await ctx.sample("Generate a greeting", max_tokens=50, key="greeting")).text)
    return ", ".join(heard) or "This client offers nothing"


# Tasks.
class Sure(BaseModel):
    confirm: bool = True
    name: str = ""


@server.tool
def greet(name: str) -> str:
    """Greet at once."""
    return f"Hello, {name}!"


@server.tool(task="optional", ttl=300, poll=0.2)
async def slow_compute(seconds: float, label: str = "", *, ctx: Context) -> str:
    """Take some seconds."""
    ctx.progress(0, seconds, f"computing {label}")
    await asyncio.sleep(seconds)
    return f"{label}: computed for {seconds:g} s"


@server.tool(task="required", ttl=300, poll=0.2)
async def failing_job() -> str:
    """Fail after a while, and tell the model so."""
    await asyncio.sleep(10 * STEP_SECONDS)
    raise ToolError("This job intentionally fails")


@server.tool(task="required", ttl=300, poll=0.2)
async def protocol_error_job() -> str:
    """Fail with an error that is not for the model."""
    await asyncio.sleep(STEP_SECONDS)
    raise ProtocolError("This job intentionally fails with a protocol error")


@server.tool(task="required", ttl=300, poll=0.2)
async def confirm_delete(filename: str, ctx: Context) -> str:
    """Ask before a file is deleted. No file is."""
    answer = await ctx.ask(f"Delete {filename}?", Sure)
    return f"{filename} deleted" if answer.confirm else f"{filename} kept"


@server.tool(task="required", ttl=300, poll=0.2)
async def multi_input(ctx: Context) -> str:
    """Ask two questions at once."""
    first, second = await ctx.gather(
        ctx.ask("Who?", Sure, key="first"),
        ctx.ask("Who else?", Sure, key="second"),
    )
    return f"{first.name} and {second.name}"


@server.tool(task="required", begin="later", ttl=300, poll=0.2)
async def test_tool_with_task(ctx: Context) -> str:
    """Ask first, then run as a task."""
    person = await ctx.ask("What is your name?", Name, key="user_name")
    if ctx.task is not None:
        await ctx.task.begin()
    await asyncio.sleep(STEP_SECONDS)
    return f"Hello, {person['name']}!"


# Lists that change while serving: each call adds one item, or takes it away again.
def test_added_tool() -> str:
    """Comes and goes."""
    return "Here for now"


def test_added_prompt() -> str:
    """Comes and goes."""
    return "Here for now"


added = {"tool": False, "prompt": False}


@server.tool
def test_trigger_tool_change() -> str:
    """Change the list of tools."""
    if added["tool"]:
        server.remove_tool("test_added_tool")
    else:
        server.add_tool(test_added_tool)
    added["tool"] = not added["tool"]
    return "Tool list changed"


@server.tool
def test_trigger_prompt_change() -> str:
    """Change the list of prompts."""
    if added["prompt"]:
        server.remove_prompt("test_added_prompt")
    else:
        server.add_prompt(test_added_prompt)
    added["prompt"] = not added["prompt"]
    return "Prompt list changed"


# Schemas that have to arrive as they were written.
ADDRESS_BOOK: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


@server.tool(schema=ADDRESS_BOOK)
def json_schema_2020_12_tool(**entry: Any) -> str:
    """Tool with JSON Schema 2020-12 features"""
    return f"JSON Schema 2020-12 tool called with: {json.dumps(entry)}"


@server.tool
def test_x_mcp_header(
    region: Annotated[str, Field(description="Where to look", json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Take an argument that HTTP clients repeat in a header."""
    return f"Region: {region}"


# Resources.
@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text that never changes."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """A picture that never changes."""
    return DOT


@server.resource("test://template/{id}/data", mime_type="application/json")
def template_data(id: str) -> dict[str, Any]:
    """Data by its id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """A resource to subscribe to."""
    return "Watched resource content"


# A skill with folders in it. The suite takes the first that it finds.
server.skills("skills")


# Prompts.
@server.prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@server.prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with two arguments.

    Args:
        arg1: First test argument.
        arg2: Second test argument.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@server.completion("test_prompt_with_arguments", "arg1")
def arg1_values(value: str) -> list[str]:
    return [known for known in ("test", "test1", "test2") if known.startswith(value)]


@server.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[str | Embedded]:
    """A prompt that encloses a resource.

    Args:
        resourceUri: The resource to enclose.
    """
    text = "Embedded resource content for testing."
    return [Embedded(resourceUri, text=text, mime_type="text/plain"), "Please process the embedded resource above."]


@server.prompt
def test_prompt_with_image() -> list[str | Image]:
    """A prompt that shows a picture."""
    return [Image(DOT), "Please analyze the image above."]


@server.prompt
async def test_input_required_result_prompt(ctx: Context) -> str:
    """A prompt that asks before it is written."""
    answer = await ctx.ask("What context should the prompt use?", PromptContext, key="user_context")
    return f"Use this context: {answer['context']}"


if __name__ == "__main__":
    server.main()
