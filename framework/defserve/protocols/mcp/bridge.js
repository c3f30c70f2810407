// The bridge of defserve: `host` is the program that shows this view.
(() => {
  const TOOLS = "", URIS = "", root = document.documentElement;
  const waiting = new Map(), listeners = {}, last = {}, context = {};
  let count = 0, height = 0;

  const post = message => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const notify = (method, params = {}) => post({ method, params });
  const send = (method, params) => new Promise((resolve, reject) => {
    waiting.set(++count, [resolve, reject]);
    post({ id: count, method, params });
  });
  const request = (method, params = {}) => ready.then(() => send(method, params));
  const textOf = result => (result.content || []).filter(b => b.type === "text").map(b => b.text).join("\n");
  const valueOf = result => {
    const found = result.structuredContent;
    if (!found) return textOf(result);
    return result._meta?.["dev.defserve/wrapped"] ? found.result : found;
  };
  const tell = (kind, ...values) => {
    last[kind] = values;
    return Promise.all((listeners[kind] || []).map(listener => listener(...values)));
  };
  const adopt = changes => {
    Object.assign(context, changes);
    if (changes.theme) root.style.colorScheme = root.dataset.theme = changes.theme;
    for (const [name, value] of Object.entries(changes.styles?.variables || {})) root.style.setProperty(name, value);
    tell("context", context);
  };
  const measure = () => {
    const set = root.style.height;
    root.style.height = "max-content";
    const now = Math.ceil(root.getBoundingClientRect().height);
    root.style.height = set;
    if (now !== height) notify("ui/notifications/size-changed", { height: height = now });
  };
  const heard = {
    "ui/notifications/tool-input-partial": p => tell("partial", p.arguments || {}),
    "ui/notifications/tool-input": p => tell("input", p.arguments || {}),
    "ui/notifications/tool-result": p => tell("result", valueOf(p), p),
    "ui/notifications/tool-cancelled": p => tell("cancelled", p.reason),
    "ui/notifications/host-context-changed": adopt,
  };
  const answers = { ping: () => ({}), "ui/resource-teardown": async () => (await tell("teardown"), {}) };

  addEventListener("message", async ({ source, data }) => {
    if (source !== parent || data?.jsonrpc !== "2.0") return;
    const { id, method, params = {}, error } = data;
    if (method && id === undefined) heard[method]?.(params);
    else if (answers[method]) post({ id, result: await answers[method]() });
    else if (method) post({ id, error: { code: -32601, message: "Method not found" } });
    else if (waiting.has(id)) {
      const [resolve, reject] = waiting.get(id);
      waiting.delete(id);
      error ? reject(Object.assign(new Error(error.message), error)) : resolve(data.result);
    }
  });

  const ready = send("ui/initialize", {
    appInfo: { name: "view", version: "1" }, appCapabilities: {}, protocolVersion: "2026-01-26",
  }).then(found => {
    adopt(found.hostContext || {});
    notify("ui/notifications/initialized");
    new ResizeObserver(measure).observe(root);
    return found;
  });

  window.host = {
    ready, context, request, notify,
    on: (kind, listener) => {
      (listeners[kind] ||= []).push(listener);
      if (last[kind]) listener(...last[kind]);
    },
    call: async (name, args = {}) => {
      const result = await request("tools/call", { name: TOOLS + name, arguments: args });
      if (result.isError) throw Object.assign(new Error(textOf(result)), { result });
      return valueOf(result);
    },
    read: async uri => (await request("resources/read", { uri: uri.replace("://", "://" + URIS) })).contents,
    open: url => request("ui/open-link", { url }),
    say: text => request("ui/message", { role: "user", content: [{ type: "text", text }] }),
    remember: text => request("ui/update-model-context", { content: [{ type: "text", text }] }),
    log: (data, level = "info") => notify("notifications/message", { level, data }),
  };
})();
