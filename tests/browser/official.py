"""A server of the official Python SDK, with a tool, a resource, a prompt and a view. Its own environment runs it."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer  # pyright: ignore
from mcp.server.mcpserver import Context  # pyright: ignore

server: Any = MCPServer("official", version="1")

VIEW = """<!doctype html><p id="said">nothing yet</p><script>
const post = message => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
addEventListener("message", ({ data }) => {
  if (data.id === 1) post({ method: "ui/notifications/initialized", params: {} });
  if (data.method === "ui/notifications/tool-result") document.querySelector("#said").textContent = data.params.content[0].text;
});
post({ id: 1, method: "ui/initialize", params: { appInfo: { name: "v", version: "1" }, appCapabilities: {}, protocolVersion: "2026-01-26" } });
</script>"""  # noqa: E501


@server.tool(meta={"ui": {"resourceUri": "ui://official/view"}})
async def add(a: int, b: int, ctx: Context) -> str:
    """Add two numbers."""
    await ctx.report_progress(1, 2)
    return f"{a} and {b} are {a + b}"


@server.resource("ui://official/view", mime_type="text/html;profile=mcp-app")
def view() -> str:
    return VIEW


@server.resource("note://hello")
def hello() -> str:
    return "hello from the SDK"


@server.prompt()
def greet(name: str) -> str:
    return f"Greet {name}"


server.run()
