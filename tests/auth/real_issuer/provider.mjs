// A real OpenID provider (npm: oidc-provider) on a port of its own. Prints its issuer; the argument says where it is installed.
import http from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const load = createRequire(`${process.argv[2]}/`);
const { Provider } = await import(pathToFileURL(load.resolve("oidc-provider")));

const server = http.createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      { client_id: "tools", client_secret: "tools-secret", redirect_uris: [], response_types: [], grant_types: [] },
      {
        client_id: "our-app",
        client_secret: "our-app-secret",
        grant_types: ["authorization_code", "refresh_token"],
        // The port of the server in front is not known yet.
        redirect_uris: ["http://localhost/callback"],
        application_type: "native",
      },
    ],
    scopes: ["openid", "profile", "email", "offline_access", "notes:read", "notes:write"],
    issueRefreshToken: async () => true,
    clientBasedCORS: () => false,
    features: {
      devInteractions: { enabled: true },
      registration: { enabled: true },
      revocation: { enabled: true },
      introspection: { enabled: true, allowedPolicy: async () => true },
      dPoP: { enabled: true, nonceSecret: Buffer.alloc(32, 1), requireNonce: () => false },
      resourceIndicators: {
        enabled: true,
        defaultResource: async () => undefined,
        useGrantedResource: async () => true,
        getResourceServerInfo: async (ctx, resource) => ({
          audience: resource,
          scope: "notes:read notes:write",
          accessTokenFormat: resource.includes("opaque") ? "opaque" : "jwt",
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
