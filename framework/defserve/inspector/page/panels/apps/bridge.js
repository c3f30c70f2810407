// The messages between the page and the view in its frame: JSON-RPC over postMessage. A view is not trusted: how many
// messages it sends, and how large, is bounded. Beyond that it is stopped.
import { ask } from "../../socket.js";
import { app, toast } from "../../store.js";
import { saveFile } from "../../parts/content.js";
import { TALLEST, context } from "./context.js";
import { change, close, store } from "./state.js";

const LONGEST = 1000000; // characters of one message
const BURST = 400,
  RATE = 100; // messages at once, and a second
const BYTES_BURST = 4000000,
  BYTES_RATE = 1000000;
const MOST_KEPT = 500,
  MOST_KEPT_BYTES = 2000000;
const TEARDOWN = 500; // ms that a view has to end by itself

let last = 0;

// Keeps a message for the list. What is kept is bounded too; the oldest go first.
function keep(n, from, data, text, of) {
  const { method, id } = data;
  const entry = {
    n: ++last,
    at: Date.now() / 1000,
    from,
    method: typeof method === "string" ? method : null,
    of,
    id: id === undefined ? null : id,
    size: text.length,
    data,
    failed: "error" in data,
  };
  change(n, open => {
    const messages = [...open.messages, entry];
    let bytes = open.bytes + text.length;
    while (messages.length > MOST_KEPT || (bytes > MOST_KEPT_BYTES && messages.length > 1))
      bytes -= messages.shift().size;
    return { messages, bytes, count: open.count + 1 };
  });
}

// Saves a file that a view has made. The person has allowed it, by its name.
function save({ resource: { uri, mimeType, text, blob } }) {
  const last = String(uri).split("/").pop() || "file";
  try {
    saveFile(decodeURIComponent(last), String(mimeType ?? ""), text ?? blob, text === undefined);
  } catch {
    toast(`${last} was not saved: its name or its base64 is broken`);
  }
}

// Joins the frame of an opened app with its host side, until the function that it gives is called.
export function bridge(n, id, frame) {
  let messages = BURST,
    bytes = BYTES_BURST,
    at = performance.now(),
    ended = false;
  const pending = new Map(); // id of a request of the view → its method
  const asked = new Set();
  const stop = reason => {
    end();
    change(n, () => ({ state: "stopped", reason }));
  };
  const post = message => {
    if (ended) return;
    const of = message.method ? null : pending.get(message.id);
    if (!message.method) pending.delete(message.id);
    const text = JSON.stringify(message);
    keep(n, "host", message, text, of);
    // A view in a sandbox has no origin that could be named here. Nobody else can be in this frame: the policy of the
    // page forbids it.
    frame.contentWindow?.postMessage(JSON.parse(text), "*");
  };
  const take = async data => {
    const asking = ask("apps.message", { app: id, message: data });
    asked.add(asking);
    try {
      const { answers } = await asking;
      for (const answer of answers) {
        post(answer);
        if (data.method === "ui/request-display-mode" && answer.result) change(n, () => ({ mode: answer.result.mode }));
        if (data.method === "ui/download-file" && answer.result) data.params.contents.forEach(save);
      }
    } catch (error) {
      if (data.id !== undefined && data.method && !error.cancelled)
        post({ jsonrpc: "2.0", id: data.id, error: { code: -32603, message: error.message } });
    } finally {
      asked.delete(asking);
    }
  };
  const heard = event => {
    if (ended || event.source !== frame.contentWindow || event.origin !== "null") return;
    const now = performance.now(),
      passed = (now - at) / 1000;
    at = now;
    messages = Math.min(BURST, messages + passed * RATE) - 1;
    if (messages < 0) {
      stop(`It sent more than ${RATE} messages a second.`);
      return;
    }
    let text;
    try {
      text = JSON.stringify(event.data);
    } catch {
      text = undefined;
    }
    if (typeof text !== "string") return;
    bytes = Math.min(BYTES_BURST, bytes + passed * BYTES_RATE) - text.length;
    if (text.length > LONGEST || bytes < 0) {
      stop(
        text.length > LONGEST ? `It sent a message of ${text.length} characters.` : "It sent more than can be taken.",
      );
      return;
    }
    const data = JSON.parse(text);
    // What is no message of the protocol, such as that of a tool of the browser, is not for us.
    if (data === null || typeof data !== "object" || data.jsonrpc !== "2.0") return;
    const isRequest = typeof data.method === "string" && data.id !== undefined;
    if (isRequest) pending.set(data.id, data.method);
    if (pending.size > BURST) {
      stop("It asked more than it waited for.");
      return;
    }
    keep(n, "view", data, text, data.method ? null : data.id === "teardown" ? "ui/resource-teardown" : null);
    const size = Number(data.params?.height);
    if (data.method === "ui/notifications/size-changed" && size > 0)
      change(n, () => ({ height: Math.min(size, TALLEST) }));
    if (data.method === "ui/notifications/request-teardown") close();
    if (typeof data.method === "string") take(data);
    else if (data.id === "teardown") goodbye?.();
  };
  let goodbye = null;
  addEventListener("message", heard);
  const tell = () =>
    ask("apps.context", { app: id, context: context(frame) }).then(
      ({ answers }) => answers.forEach(post),
      () => {},
    );
  let theme = app.get().theme;
  const unfollow = app.subscribe(state => {
    if (state.theme !== theme) {
      theme = state.theme;
      tell();
    }
  });
  function end() {
    ended = true;
    removeEventListener("message", heard);
    unfollow();
    for (const asking of asked) asking.cancel();
  }
  // The mode was changed by the person.
  const display = mode =>
    ask("apps.context", { app: id, context: { displayMode: mode } }).then(
      ({ answers }) => {
        change(n, () => ({ mode }));
        answers.forEach(post);
      },
      () => {},
    );
  // Lets the view end by itself, for a moment.
  const teardown = () =>
    new Promise(resolve => {
      goodbye = resolve;
      post({ jsonrpc: "2.0", id: "teardown", method: "ui/resource-teardown", params: { reason: "closed" } });
      setTimeout(resolve, TEARDOWN);
    });
  store.set({ bridge: { n, display, teardown } });
  return end;
}
