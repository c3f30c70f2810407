// What the TypeScript servers offer: the tools of shapes.py, and the catalogues of catalogue.py.
"use strict";

const { McpServer } = require("@modelcontextprotocol/server");
const { z } = require("zod");

const scalars = z.object({ a: z.number().int(), b: z.number().int() });
const line = z.object({
  sku: z.string(),
  quantity: z.number().int(),
  unit_price: z.number(),
  note: z.string().nullable().default(null),
});
const order = z.object({ customer: z.string(), currency: z.string(), lines: z.array(line) });
const receipt = z.object({
  customer: z.string(),
  currency: z.string(),
  lines: z.array(z.object({ sku: z.string(), amount: z.number() })),
  total: z.number(),
});

const add = ({ a, b }) => ({ content: [{ type: "text", text: String(a + b) }], structuredContent: { result: a + b } });

const price = ({ order }) => {
  const lines = order.lines.map(({ sku, quantity, unit_price }) => ({ sku, amount: quantity * unit_price }));
  const total = lines.reduce((sum, { amount }) => sum + amount, 0);
  const priced = { customer: order.customer, currency: order.currency, lines, total };
  // Python writes 525.0, which the benchmark looks for.
  const text = JSON.stringify(priced).replace(/"total":(\d+)}/, '"total":$1.0}');
  return { content: [{ type: "text", text }], structuredContent: priced };
};

const sum = { description: "Add two numbers.", inputSchema: scalars, outputSchema: z.object({ result: z.number() }) };
const priced = { description: "Price an order.", inputSchema: z.object({ order }), outputSchema: receipt };
const TOOLS = {
  add: [sum, add],
  add_sync: [sum, add],
  add_inline: [sum, add],
  price_order: [priced, price],
  price_order_sync: [priced, price],
  price_order_inline: [priced, price],
};
const SHAPES = {
  scalar: ["add", "add_sync", "add_inline"],
  model: ["add", "add_sync", "price_order"],
  calls: Object.keys(TOOLS),
};
// As in catalogue.py.
const SIGNATURES = [
  { query: z.string(), limit: z.number().int().default(20) },
  { order },
  { x: z.number(), y: z.number(), exact: z.boolean().default(false) },
  { names: z.array(z.string()), level: z.enum(["low", "high"]).default("low") },
  { path: z.string(), recursive: z.boolean().default(false), depth: z.number().int().nullable().default(null) },
  { counts: z.record(z.string(), z.number().int()), floor: z.number().int().min(0).default(0) },
  { title: z.string(), body: z.string(), tags: z.array(z.string()).nullable().default(null) },
  { identifier: z.number().int() },
];

exports.makeServer = (shape) => {
  const server = new McpServer({ name: "bench", version: "1" });
  for (const name of SHAPES[shape] ?? []) server.registerTool(name, ...TOOLS[name]);
  for (let number = 0; number < Number(shape); number++) {
    const about = `Do the work of department ${number}, and say how it went.`;
    const inputSchema = z.object(SIGNATURES[number % SIGNATURES.length]);
    server.registerTool(`tool_${String(number).padStart(4, "0")}`, { description: about, inputSchema }, async () => {
      throw new Error("not implemented");
    });
  }
  return server;
};
