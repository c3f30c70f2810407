// The official TypeScript client of either major version: @modelcontextprotocol/sdk (1.x) or .../client (2.x).
// The only argument is the plan, as in telling.py.
"use strict";

const fs = require("node:fs");
const { createRequire } = require("node:module");
const { tour } = require("./touring.cjs");

const plan = JSON.parse(process.argv[2]);
const load = createRequire(`${plan.package}/`);
const OLD = fs.existsSync(`${plan.package}/node_modules/@modelcontextprotocol/sdk`);
const STATELESS = "2026-07-28";
const sdk = (path, name) => load(`@modelcontextprotocol/${OLD ? `sdk/client/${path}.js` : "client"}`)[name];
const stdio = () => (OLD ? sdk("stdio", "StdioClientTransport") : load("@modelcontextprotocol/client/stdio").StdioClientTransport);

const tell = (feature, saw) => console.log(JSON.stringify({ feature, saw }));
const text = (result) => result.content.map((block) => block.text).join(" ");
const heard = [];

async function attempt(feature, trying, seconds = 20) {
  if (!plan.features.includes(feature)) return;
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing for ${seconds} s`)), seconds * 1000);
  });
  try {
    tell(feature, await Promise.race([trying(), late]));
  } catch (error) {
    tell(feature, { error: String(error) });
  }
  clearTimeout(timer);
}

function transport(url, headers) {
  if (url || plan.transport === "http") {
    const Http = sdk("streamableHttp", "StreamableHTTPClientTransport");
    return new Http(new URL(url ?? plan.url), { requestInit: { headers: headers ?? plan.headers } });
  }
  if (plan.transport === "sse") return new (sdk("sse", "SSEClientTransport"))(new URL(plan.sse));
  const [command, ...args] = plan.command;
  return new (stdio())({ command, args, stderr: "inherit" });
}

async function connected(url, headers) {
  const negotiation = OLD ? {} : { versionNegotiation: { mode: plan.version === STATELESS ? { pin: STATELESS } : "legacy" } };
  const client = new (sdk("index", "Client"))(
    { name: "driver", version: "1.0.0" },
    { capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} }, ...negotiation },
  );
  const elicited = async () => ({ action: "accept", content: { name: "Ann", nights: 2 } });
  const sampled = async () => ({ model: "m", role: "assistant", content: { type: "text", text: "short" } });
  const types = OLD ? load("@modelcontextprotocol/sdk/types.js") : {};
  client.setRequestHandler(OLD ? types.ElicitRequestSchema : "elicitation/create", elicited);
  client.setRequestHandler(OLD ? types.CreateMessageRequestSchema : "sampling/createMessage", sampled);
  client.setRequestHandler(OLD ? types.ListRootsRequestSchema : "roots/list", async () => ({
    roots: [{ uri: plan.root, name: "desk" }],
  }));
  const hear = (method, schema, note) =>
    client.setNotificationHandler(OLD ? types[schema] : method, (notification) => void heard.push(note(notification.params)));
  hear("notifications/message", "LoggingMessageNotificationSchema", (params) => ["log", JSON.stringify(params.data)]);
  hear("notifications/resources/updated", "ResourceUpdatedNotificationSchema", (params) => ["updated", params.uri]);
  for (const kind of ["tool", "prompt", "resource"]) {
    const schema = `${kind[0].toUpperCase()}${kind.slice(1)}ListChangedNotificationSchema`;
    hear(`notifications/${kind}s/list_changed`, schema, () => ["changed", `${kind}s`]);
  }
  const way = transport(url, headers);
  // 1.x tells nobody but its transport.
  let version = null;
  const told = way.setProtocolVersion?.bind(way);
  way.setProtocolVersion = (agreed) => {
    version = agreed;
    told?.(agreed);
  };
  await client.connect(way);
  return { client, version: OLD ? version : client.getNegotiatedProtocolVersion() };
}

// Where the third argument is: 1.x has a result schema before the options.
const LEVEL = plan.version === STATELESS ? { _meta: { "io.modelcontextprotocol/logLevel": "debug" } } : {};
const call = (client, name, args, options) => {
  const params = { name, arguments: args, ...LEVEL };
  return OLD ? client.callTool(params, undefined, options) : client.callTool(params, options);
};

async function main() {
  const { client, version } = await connected();
  tell("connect", true);
  tell("version", version === plan.version || version);
  const structured = async (tool, args) => (await call(client, tool, args)).structuredContent;
  const steps = async () => {
    const seen = [];
    await call(client, "count_to", { last: 3 }, { onprogress: (step) => seen.push(step.progress) });
    return seen;
  };
  const many = async () => {
    let last = 0;
    for (let i = 0; i < 200; i++) last += (await steps()).at(-1) === 3 ? 1 : 0;
    return last;
  };
  // This client handles a result before the progress that it reads together with it. Where other programs keep it from
  // reading, a round may lose some, and is repeated.
  const undisturbed = async (round, size, whole) => {
    let best = await round();
    for (let again = 0; again < 9 && size(best) < whole; again++) {
      const seen = await round();
      if (size(seen) > size(best)) best = seen;
    }
    return best;
  };
  await attempt("list", async () => (await client.listTools()).tools.map((tool) => tool.name).sort());
  await attempt("call", async () => text(await call(client, "add", { a: 2, b: 3 })));
  await attempt("structured", () => structured("bill", { order: [{ item: "tea", price: 2.5, quantity: 2 }] }));
  await attempt("structured list", () => structured("primes", {}));
  await attempt("structured none", () => structured("find", { name: "x" }));
  await attempt("formats", () => structured("hours", {}));
  await attempt("errors", async () => text(await call(client, "withdraw", { amount: 101 })));
  await attempt("progress", () => undisturbed(steps, (seen) => seen.length, 3));
  await attempt("progress ×200", () => undisturbed(many, (count) => count, 200), 60);
  await attempt("resources", async () => (await client.readResource({ uri: "note://milk" })).contents[0].text);
  await attempt("prompts", async () =>
    (await client.getPrompt({ name: "debate", arguments: { topic: "tabs" } })).messages.map((message) => message.role),
  );
  await attempt("elicitation", async () => text(await call(client, "check_in", {})));
  await attempt("sampling", async () => text(await call(client, "summarize", { text: "long" })));
  await tour({ client, call: (...given) => call(client, ...given), text, heard, attempt, plan });
  await client.close();
  await attempt("auth", async () => {
    const keyed = await connected(plan.keyed, { Authorization: `Bearer ${plan.token}` });
    return text(await call(keyed.client, "whoami", {}));
  });
  await attempt("no token", async () => {
    const said = await connected(plan.keyed).then(() => "was let in", String);
    return /token|401|unauthorized/i.test(said) || said;
  });
  await attempt("resumption", async () => {
    const cut = await connected(plan.cut);
    return text(await call(cut.client, "cook", { seconds: 1.5 }, { onprogress: () => {} }));
  });
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
