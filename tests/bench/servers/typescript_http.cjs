// The official TypeScript SDK over HTTP, on Node's own server. Sessions are kept by us, as its documentation shows it:
// its handler of both eras keeps none. With `json` it answers with JSON, not events.
"use strict";

const { randomUUID } = require("node:crypto");
const { createServer } = require("node:http");
const { NodeStreamableHTTPServerTransport, toNodeHandler } = require("@modelcontextprotocol/node");
const { createMcpHandler } = require("@modelcontextprotocol/server");
const { makeServer } = require("./typescript_tools.cjs");

const isJson = process.argv.includes("json");
const modern = toNodeHandler(createMcpHandler(() => makeServer("calls"), { responseMode: isJson ? "json" : "auto" }));
const sessions = new Map();

const openSession = async () => {
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    enableJsonResponse: isJson,
    onsessioninitialized: (id) => sessions.set(id, transport),
  });
  await makeServer("calls").connect(transport);
  return transport;
};

// Connections stay open while the other servers have their turn. Node would end them after five seconds.
createServer({ keepAliveTimeout: 600_000 }, async (request, response) => {
  if (request.headers["mcp-method"]) return modern(request, response);
  const transport = sessions.get(request.headers["mcp-session-id"]) ?? (await openSession());
  await transport.handleRequest(request, response);
}).listen(Number(process.argv[2]), "127.0.0.1");
