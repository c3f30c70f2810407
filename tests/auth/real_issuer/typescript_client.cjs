// The official TypeScript client of either major version signs in: arguments: its folder, the server's URL.
// It prints `OPEN url` where a browser has to be opened, and reads the address to which the browser is sent.
"use strict";

const fs = require("node:fs");
const { createRequire } = require("node:module");
const readline = require("node:readline");

const [folder, url] = process.argv.slice(2);
const load = createRequire(`${folder}/`);
const OLD = fs.existsSync(`${folder}/node_modules/@modelcontextprotocol/sdk`);
const sdk = (path, name) => load(`@modelcontextprotocol/${OLD ? `sdk/client/${path}.js` : "client"}`)[name];
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const REDIRECT = "http://127.0.0.1:3333/callback";

const kept = {};
const provider = {
  get redirectUrl() {
    return REDIRECT;
  },
  get clientMetadata() {
    return {
      client_name: "the official TypeScript client",
      redirect_uris: [REDIRECT],
      grant_types: ["authorization_code", "refresh_token"],
      response_types: ["code"],
      token_endpoint_auth_method: "none",
    };
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  redirectToAuthorization: (to) => console.log(`OPEN ${to}`),
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  saveDiscoveryState: (state) => void (kept.discovery = state),
  discoveryState: () => kept.discovery,
};

async function connect() {
  const Http = sdk("streamableHttp", "StreamableHTTPClientTransport");
  const way = new Http(new URL(url), { authProvider: provider });
  const client = new (sdk("index", "Client"))({ name: "driver", version: "1.0.0" });
  return { way, client };
}

(async () => {
  const first = await connect();
  try {
    await first.client.connect(first.way);
  } catch (error) {
    if (!kept.verifier) throw error;
    const back = new URL((await lines.next()).value.trim());
    const said = back.searchParams;
    await first.way.finishAuth(OLD ? said.get("code") : said);
  }
  const { way, client } = await connect();
  await client.connect(way);
  const result = await client.callTool({ name: "who", arguments: {} });
  console.log(`CALLED ${result.content[0].text}`);
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
