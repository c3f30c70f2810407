// The page of a host: the host half of ext-apps around a frame that comes from another origin.
// #bare offers tools alone. #storage gives the view an origin, and so a storage of its own.
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const BARE = { serverTools: {} };
const ALL = {
  serverTools: {},
  serverResources: {},
  openLinks: {},
  downloadFile: {},
  logging: {},
  sampling: {},
  message: { text: {} },
  updateModelContext: { text: {}, structuredContent: {} },
};
const CONTEXT = {
  theme: "light",
  styles: {
    variables: { "--color-text-primary": "rgb(1, 2, 3)" },
    css: { fonts: "@font-face { font-family: Housefont; src: local(serif); }" },
  },
  displayMode: "inline",
  availableDisplayModes: ["inline", "fullscreen"],
  safeAreaInsets: { top: 7, right: 0, bottom: 0, left: 0 },
  containerDimensions: { maxHeight: 900, maxWidth: 2000 },
};

const answer = async (method, params) => {
  const reply = await fetch("/answer", { method: "POST", body: JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }) });
  const [{ result, error }] = await reply.json();
  if (error) throw Object.assign(new Error(error.message), error);
  return result;
};

const show = async () => {
  const { view, permissions, arguments: given, result } = await (await fetch("/app")).json();
  const seen = (window.seen = { calls: [], sizes: [], asked: [], violations: 0 });
  const note = (method, reply) => async params => {
    seen.asked.push([method, params]);
    return reply;
  };
  let bridge;
  const load = async () => {
    document.querySelector("iframe")?.remove();
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", location.hash === "#storage" ? "allow-scripts allow-same-origin" : "allow-scripts");
    frame.allow = permissions.join("; ");
    document.querySelector("main").append(frame);
    const capabilities = location.hash === "#bare" ? BARE : ALL;
    bridge = new AppBridge(null, { name: "test-host", version: "1" }, capabilities, { hostContext: CONTEXT });
    bridge.oncalltool = async params => {
      seen.calls.push(params);
      return answer("tools/call", params);
    };
    bridge.onlistresources = params => answer("resources/list", params);
    bridge.onreadresource = params => answer("resources/read", params);
    bridge.onopenlink = note("open", {});
    bridge.ondownloadfile = note("download", {});
    bridge.onmessage = note("message", {});
    bridge.onupdatemodelcontext = note("remember", {});
    bridge.onrequestteardown = note("close");
    bridge.onloggingmessage = note("log");
    bridge.oncreatesamplingmessage = note("sample", { role: "assistant", model: "m", content: { type: "text", text: "42" } });
    bridge.onrequestdisplaymode = note("display", { mode: "fullscreen" });
    bridge.onsizechange = ({ width, height }) => {
      seen.sizes.push(height);
      seen.width = width;
      if (height) frame.style.height = `${height}px`;
    };
    bridge.oninitialized = async () => {
      seen.can = bridge.getAppCapabilities();
      await bridge.sendToolInput({ arguments: given });
      await bridge.sendToolResult(result);
      seen.initialized = true;
    };
    await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
    frame.src = view;
    return true;
  };
  window.teardown = () => bridge.teardownResource({});
  window.viewTools = async () => (await bridge.listTools({})).tools;
  window.callView = (name, args) => bridge.callTool({ name, arguments: args });
  window.reload = load;
  await load();
};

show().catch(error => (window.seen = { failed: String(error) }));
