// Mastra: the tools of a server as those of its agents. It makes a Zod schema of each input schema.
// The only argument is the plan, as in telling.py.
"use strict";

const { createRequire } = require("node:module");

const plan = JSON.parse(process.argv[2]);
const { MCPClient } = createRequire(`${plan.package}/`)("@mastra/mcp");
const ORDER = [{ item: "tea", price: 2.5, quantity: 2 }];
const CRATE = [4, 3, 2, 1].reduce((inner, weight) => ({ weight, contents: ORDER, crates: [inner] }), { weight: 5 });

const tell = (feature, saw) => console.log(JSON.stringify({ feature, saw }));

async function attempt(feature, trying) {
  if (!plan.features.includes(feature)) return;
  try {
    tell(feature, await trying());
  } catch (error) {
    tell(feature, { error: String(error.message ?? error) });
  }
}

function target(url, token) {
  const address = url ?? (plan.transport === "http" ? plan.url : plan.transport === "sse" ? plan.sse : undefined);
  const [command, ...args] = plan.command;
  if (!address) return { command, args };
  const headers = token ? { Authorization: `Bearer ${token}` } : plan.headers;
  return { url: new URL(address), requestInit: { headers } };
}

async function within(url, token, use) {
  const client = new MCPClient({ id: String(Math.random()), servers: { shop: target(url, token) }, timeout: 30_000 });
  try {
    await use(await client.listTools());
  } finally {
    await client.disconnect();
  }
}

const call = (tools, name, values) => tools[`shop_${name}`].execute(values, {});
const text = (result) => (result.content ? result.content.map((block) => block.text).join(" ") : JSON.stringify(result));

async function refusal(tools) {
  try {
    return text(await call(tools, "withdraw", { amount: 101 }));
  } catch (error) {
    return String(error.message);
  }
}

async function main() {
  await within(undefined, undefined, async (tools) => {
    tell("connect", true);
    await attempt("list", async () => Object.keys(tools).map((name) => name.replace("shop_", "")).sort());
    await attempt("call", async () => text(await call(tools, "add", { a: 2, b: 3 })));
    await attempt("no parameters", async () => text(await call(tools, "clean", {})));
    await attempt("recursive", async () => text(await call(tools, "weigh", { crate: CRATE })));
    await attempt("structured", () => call(tools, "bill", { order: ORDER }));
    await attempt("structured list", () => call(tools, "primes", {}));
    await attempt("errors", () => refusal(tools));
  });
  await attempt("auth", async () => {
    let saw;
    await within(plan.keyed, plan.token, async (tools) => {
      saw = text(await call(tools, "whoami", {}));
    });
    return saw;
  });
}

main().then(() => process.exit(0));
