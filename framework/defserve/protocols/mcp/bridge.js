// The bridge of defserve: `host` is the program that shows this view.
(() => {
  const TOOLS = "", URIS = "", root = document.documentElement;
  const MODES = "", STATE = "dev.defserve/view-state", MAX_STATES = 50, MAX_PAGES = 100, RESIZE_MS = 100;
  const waiting = new Map(), listeners = {}, last = {}, context = {}, can = {}, tools = new Map();
  let count = 0, size = "", timer = 0, fonts = null, setViewId;
  const viewId = new Promise(resolve => (setViewId = resolve));

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

  // A host that names no kind of content takes text. One that declares nothing is of a draft: it may be able to. The
  // example host of ext-apps takes messages, and does not declare that.
  const offers = (name, kind) => {
    if (!Object.keys(can).length) return true;
    const kinds = can[name] || (name === "message" ? {} : null);
    return !!kinds && (!kind || kind in kinds || (kind === "text" && !Object.keys(kinds).length));
  };
  const requestIf = async (name, kind, method, params) => {
    await ready;
    const missing = kind ? `${name}.${kind}` : name;
    if (!offers(name, kind)) throw Object.assign(new Error(`This host does not offer ${missing}`), { missing });
    return send(method, params);
  };

  const fill = (side, max, unit, room) => {
    if (side in room) root.style[side] = `100${unit}`;
    else if (room[max]) root.style[max] = `${room[max]}px`;
  };
  const adopt = changes => {
    Object.assign(context, changes);
    const { theme, styles = {}, safeAreaInsets: insets = {}, containerDimensions: room = {} } = changes;
    if (theme) root.style.colorScheme = root.dataset.theme = theme;
    for (const [name, value] of Object.entries(styles.variables || {})) root.style.setProperty(name, value);
    for (const [side, px] of Object.entries(insets)) root.style.setProperty(`--safe-area-${side}`, `${px}px`);
    fill("height", "maxHeight", "vh", room);
    fill("width", "maxWidth", "vw", room);
    if (styles.css?.fonts) {
      fonts ||= document.head.appendChild(document.createElement("style"));
      fonts.textContent = styles.css.fonts;
    }
    tell("context", context);
  };
  const measure = () => {
    timer = 0;
    const set = root.style.height;
    root.style.height = "max-content";
    const now = { width: Math.ceil(innerWidth), height: Math.ceil(root.getBoundingClientRect().height) };
    root.style.height = set;
    if (size === (size = JSON.stringify(now))) return;
    notify("ui/notifications/size-changed", now);
  };
  const resized = () => (timer ||= setTimeout(measure, size ? RESIZE_MS : 0));

  // What the view keeps: with the host, if it offers that, or in the storage of its origin.
  const local = {
    load: id => JSON.parse(localStorage.getItem(STATE + id))?.value ?? null,
    save: (id, value) => {
      // Another view of this origin may have written something else.
      const at = key => Number(/^{"at":(\d+)/.exec(localStorage.getItem(key))?.[1] ?? 0);
      localStorage.setItem(STATE + id, JSON.stringify({ at: Date.now(), value }));
      const keys = Object.keys(localStorage).filter(key => key.startsWith(STATE)).sort((a, b) => at(b) - at(a));
      keys.slice(MAX_STATES).forEach(key => localStorage.removeItem(key));
      return true;
    },
  };
  const atHost = () => can.experimental?.[STATE];
  const useStorage = async (method, none, ...values) => {
    const id = await viewId;
    try {
      return id ? local[method](id, ...values) : none;
    } catch {
      return none; // no storage in this frame, or no room in it
    }
  };
  const state = {
    load: async () => (await ready, atHost() ? (await send(`${STATE}/load`, {})).state : useStorage("load", null)),
    save: async value => {
      await ready;
      if (!atHost()) return useStorage("save", false, value);
      await send(`${STATE}/save`, { state: value });
      return true;
    },
  };

  const heard = {
    "ui/notifications/tool-input-partial": p => tell("partial", p.arguments || {}),
    "ui/notifications/tool-input": p => tell("input", p.arguments || {}),
    "ui/notifications/tool-result": p => (setViewId(p._meta?.viewUUID), tell("result", valueOf(p), p)),
    "ui/notifications/tool-cancelled": p => (setViewId(), tell("cancelled", p.reason)),
    "ui/notifications/host-context-changed": adopt,
    "notifications/tools/list_changed": () => tell("tools"),
    "notifications/resources/list_changed": () => tell("resources"),
  };
  const asText = value => (typeof value === "string" ? value : JSON.stringify(value ?? null));
  const toContent = text => [{ type: "text", text }];
  const runTool = async ({ name, arguments: args = {} }) => {
    const { run } = tools.get(name) || {};
    if (!run) throw Object.assign(new Error(`Unknown tool: ${name}`), { code: -32602 });
    try {
      const value = await run(args);
      const isData = value && typeof value === "object" && !Array.isArray(value);
      return { content: toContent(asText(value)), ...(isData ? { structuredContent: value } : {}) };
    } catch (error) {
      return { content: toContent(String(error?.message ?? error)), isError: true };
    }
  };
  const answers = {
    ping: () => ({}),
    "ui/resource-teardown": async () => (await tell("teardown"), {}),
    "tools/list": () => ({ tools: [...tools.values()].map(({ listed }) => listed) }),
    "tools/call": runTool,
  };
  const answer = async (id, method, params) => {
    try {
      if (!answers[method]) throw Object.assign(new Error("Method not found"), { code: -32601 });
      post({ id, result: await answers[method](params) });
    } catch ({ code = -32603, message }) {
      post({ id, error: { code, message } });
    }
  };

  addEventListener("message", ({ source, data }) => {
    if (source !== parent || data?.jsonrpc !== "2.0") return;
    const { id, method, params = {}, error } = data;
    if (method && id === undefined) heard[method]?.(params);
    else if (method) answer(id, method, params);
    else if (waiting.has(id)) {
      const [resolve, reject] = waiting.get(id);
      waiting.delete(id);
      error ? reject(Object.assign(new Error(error.message), error)) : resolve(data.result);
    }
  });

  const ready = send("ui/initialize", {
    appInfo: { name: "view", version: "1" },
    appCapabilities: { tools: { listChanged: true }, ...(MODES && { availableDisplayModes: MODES.split(" ") }) },
    protocolVersion: "2026-01-26",
  }).then(found => {
    Object.assign(can, found.hostCapabilities);
    adopt(found.hostContext || {});
    notify("ui/notifications/initialized");
    new ResizeObserver(resized).observe(root);
    return found;
  });

  const toBase64 = async data => {
    const bytes = new Uint8Array(data instanceof Blob ? await data.arrayBuffer() : data);
    return btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""));
  };
  window.host = {
    ready, context, request, notify, state,
    on: (kind, listener) => {
      (listeners[kind] ||= []).push(listener);
      if (last[kind]) listener(...last[kind]);
    },
    can: async (name, kind) => (await ready, offers(name, kind)),
    call: async (name, args = {}) => {
      const result = await requestIf("serverTools", "", "tools/call", { name: TOOLS + name, arguments: args });
      if (result.isError) throw Object.assign(new Error(textOf(result)), { result });
      return valueOf(result);
    },
    read: async uri =>
      (await requestIf("serverResources", "", "resources/read", { uri: uri.replace("://", "://" + URIS) })).contents,
    resources: async () => {
      const found = [], params = {};
      for (let page = 0; page < MAX_PAGES; page++) {
        const { resources, nextCursor } = await requestIf("serverResources", "", "resources/list", { ...params });
        found.push(...resources.filter(each => each.uri.split("://")[1]?.startsWith(URIS)));
        if (!(params.cursor = nextCursor)) break;
      }
      return found.map(each => ({ ...each, uri: each.uri.replace("://" + URIS, "://") }));
    },
    open: url => requestIf("openLinks", "", "ui/open-link", { url }),
    download: async (name, data, mimeType = "text/plain") => {
      const content = typeof data === "string" ? { text: data } : { blob: await toBase64(data) };
      const resource = { uri: `file:///${encodeURIComponent(name)}`, mimeType, ...content };
      return requestIf("downloadFile", "", "ui/download-file", { contents: [{ type: "resource", resource }] });
    },
    say: text => requestIf("message", "text", "ui/message", { role: "user", content: toContent(text) }),
    remember: value => {
      const isText = typeof value === "string", kind = isText ? "text" : "structuredContent";
      const params = isText ? { content: toContent(value) } : { structuredContent: value };
      return requestIf("updateModelContext", kind, "ui/update-model-context", params);
    },
    sample: params => requestIf("sampling", "", "sampling/createMessage", params),
    display: async mode => {
      await ready;
      if (!context.availableDisplayModes?.includes(mode)) return context.displayMode;
      return (context.displayMode = (await send("ui/request-display-mode", { mode })).mode);
    },
    close: () => notify("ui/notifications/request-teardown"),
    tool: (name, { description = "", inputSchema = { type: "object" } }, run) => {
      tools.set(name, { run, listed: { name, description, inputSchema } });
      ready.then(() => notify("notifications/tools/list_changed"));
    },
    log: async (data, level = "info") => {
      await ready;
      if (offers("logging")) notify("notifications/message", { level, data });
    },
  };
})();
