// The official TypeScript client comes in by credentials of its own, or by an identity assertion of a company.
// Arguments: its folder, which grant, and what it needs, as JSON.
"use strict";

const fs = require("node:fs");
const { createRequire } = require("node:module");

const [folder, grant, needed] = process.argv.slice(2);
const { url, issuer, secret, key, company, at_company: atCompany } = JSON.parse(needed);
const load = createRequire(`${folder}/`);
const OLD = fs.existsSync(`${folder}/node_modules/@modelcontextprotocol/sdk`);
const sdk = (path, name) => load(`@modelcontextprotocol/${OLD ? `sdk/client/${path}.js` : "client"}`)[name];
const provider = (name) => sdk("auth-extensions", name);

function makeProvider() {
  if (grant === "client secret")
    return new (provider("ClientCredentialsProvider"))({ clientId: "job", clientSecret: secret, expectedIssuer: issuer });
  if (grant === "client signature") {
    const signing = { clientId: "agent", privateKey: key, algorithm: "ES256", expectedIssuer: issuer };
    return new (provider("PrivateKeyJwtProvider"))(signing);
  }
  const assertion = async ({ authorizationServerUrl, resourceUrl, scope, fetchFn }) => {
    const { jwtAuthGrant } = await sdk("crossAppAccess", "discoverAndRequestJwtAuthGrant")({
      idpUrl: company,
      audience: authorizationServerUrl,
      resource: resourceUrl,
      idToken: "the person's ID token",
      clientId: atCompany[0],
      clientSecret: atCompany[1],
      scope,
      fetchFn,
    });
    return jwtAuthGrant;
  };
  const options = { assertion, clientId: "claude", clientSecret: secret, expectedIssuer: issuer };
  return new (provider("CrossAppAccessProvider"))(options);
}

(async () => {
  const Http = sdk("streamableHttp", "StreamableHTTPClientTransport");
  const client = new (sdk("index", "Client"))({ name: "driver", version: "1.0.0" });
  await client.connect(new Http(new URL(url), { authProvider: makeProvider() }));
  const result = await client.callTool({ name: "who", arguments: {} });
  console.log(result.content[0].text);
  process.exit(0);
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
