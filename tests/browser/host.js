// The page of a host: the host half of ext-apps around a frame that comes from another origin.
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const answer = async (method, params) => {
  const reply = await fetch("/answer", { method: "POST", body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }) });
  const [{ result, error }] = await reply.json();
  if (error) throw Object.assign(new Error(error.message), error);
  return result;
};

const show = async () => {
  const { view, permissions, arguments: given, result } = await (await fetch("/app")).json();
  const seen = (window.seen = { calls: [], sizes: [], violations: 0 });
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.allow = permissions.join("; ");
  document.querySelector("main").append(frame);
  const capabilities = { serverTools: {}, serverResources: {}, openLinks: {}, logging: {} };
  const context = { theme: "light", styles: { variables: { "--color-text-primary": "rgb(1, 2, 3)" } } };
  const bridge = new AppBridge(null, { name: "test-host", version: "1" }, capabilities, { hostContext: context });
  bridge.oncalltool = async params => {
    seen.calls.push(params);
    return answer("tools/call", params);
  };
  bridge.onsizechange = ({ height }) => {
    seen.sizes.push(height);
    if (height) frame.style.height = `${height}px`;
  };
  bridge.oninitialized = async () => {
    await bridge.sendToolInput({ arguments: given });
    await bridge.sendToolResult(result);
    seen.initialized = true;
  };
  window.teardown = () => bridge.teardownResource({});
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  frame.src = view;
};

show().catch(error => (window.seen = { failed: String(error) }));
