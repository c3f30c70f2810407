// A tour of examples/everything.py with the official TypeScript client: what it saw, printed as JSON.
// node tour.cjs FOLDER ADDRESS VERSION, where FOLDER/node_modules has @modelcontextprotocol/client.
"use strict";

const { createRequire } = require("node:module");

const [folder, address, version] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = createRequire(`${folder}/`)("@modelcontextprotocol/client");

const STATELESS = "2026-07-28";
const text = (result) => result.content.map((block) => block.text);

async function main() {
  const progress = [];
  const news = [];
  const asked = [];
  const mode = version === STATELESS ? { pin: version } : "legacy";
  const client = new Client(
    { name: "tour", version: "1.0.0" },
    { capabilities: { elicitation: { form: {} }, sampling: {} }, versionNegotiation: { mode } },
  );
  client.setRequestHandler("elicitation/create", async (request) => {
    asked.push(request.params.message);
    return { action: "accept", content: { name: "Ann", nights: 2 } };
  });
  client.setRequestHandler("sampling/createMessage", async (request) => {
    asked.push(request.params.messages[0].content.text);
    return { model: "m", role: "assistant", content: { type: "text", text: "short" }, stopReason: "endTurn" };
  });
  const heard = new Promise((resolve) => {
    client.setNotificationHandler("notifications/tools/list_changed", async (notification) => {
      news.push(notification.method);
      resolve();
    });
  });

  await client.connect(new StreamableHTTPClientTransport(new URL(address)));
  const listening = version === STATELESS ? await client.listen({ toolsListChanged: true }) : null;
  const tools = (await client.listTools()).tools.map((tool) => tool.name);
  const bill = await client.callTool({
    name: "bill",
    arguments: { order: [{ item: "tea", price: 2.5, quantity: 2 }] },
  });
  const refused = await client.callTool({ name: "withdraw", arguments: { amount: 101 } });
  const unknown = await client.callTool({ name: "no_such_tool", arguments: {} }).catch((error) => error.code);
  const counted = await client.callTool(
    { name: "count_to", arguments: { last: 3 } },
    { onprogress: (step) => progress.push([step.progress, step.total]) },
  );
  const resource = await client.readResource({ uri: "note://milk" });
  const prompt = await client.getPrompt({ name: "debate", arguments: { topic: "tabs" } });
  const checkedIn = await client.callTool({ name: "check_in", arguments: {} });
  const summary = await client.callTool({ name: "summarize", arguments: { text: "long" } });

  const leaving = new AbortController();
  setTimeout(() => leaving.abort("enough"), 100);
  const slept = client.callTool({ name: "sleep", arguments: { seconds: 60 } }, { signal: leaving.signal });
  const cancelled = await slept.then(() => "woke up", () => "cancelled");
  const learnt = await client.callTool({ name: "learn", arguments: { word: "moin" } });
  await heard;
  const said = await client.callTool({ name: "say_moin", arguments: {} });

  await listening?.close();
  console.log(
    JSON.stringify({
      version: client.getNegotiatedProtocolVersion(),
      server: client.getServerVersion().name,
      instructions: client.getInstructions(),
      tools,
      bill: bill.structuredContent,
      refused: [refused.isError, ...text(refused)],
      unknown,
      counted: text(counted),
      progress,
      resource: resource.contents[0].text,
      prompt: prompt.messages.map((message) => message.role),
      checkedIn: text(checkedIn),
      summary: text(summary),
      asked,
      cancelled,
      learnt: text(learnt),
      said: text(said),
      news,
    }),
  );
  await client.close();
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
