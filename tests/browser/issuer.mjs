// npm's oidc-provider as an issuer for tests: on a free loopback port, which it prints. Everything is in memory.
import { createServer } from "node:http";
import Provider from "oidc-provider";

const RESOURCE_SCOPES = "read write";
const server = createServer();

server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    scopes: ["openid", "offline_access", "read", "write"],
    pkce: { required: () => true },
    ttl: { AccessToken: 3600, RefreshToken: 86400, Session: 86400, Grant: 86400, Interaction: 600 },
    rotateRefreshToken: true,
    clientDefaults: { token_endpoint_auth_method: "none" },
    features: {
      devInteractions: { enabled: true },
      registration: { enabled: true },
      revocation: { enabled: true },
      dPoP: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: RESOURCE_SCOPES,
          audience: resource,
          accessTokenTTL: 3600,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
