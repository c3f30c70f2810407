// The official TypeScript SDK as its documentation shows it. It runs every tool on its one loop, so all kinds are one.
"use strict";

const { serveStdio } = require("@modelcontextprotocol/server/stdio");
const { makeServer } = require("./typescript_tools.cjs");

serveStdio(() => makeServer(process.argv[2]));
