// The tools with a view, and the view that is open: one at a time.
import { ask, on } from "../../socket.js";
import { app, createStore, toast } from "../../store.js";
import { context } from "./context.js";

export const store = createStore({
  open: null, // { n, era, tool, arguments, state, … }: calling, shown, failed, stopped, closed
  bridge: null, // how the person acts on the view in the frame
});

let last = 0;
export const change = (n, how) =>
  store.set(state => (state.open?.n === n ? { open: { ...state.open, ...how(state.open) } } : {}));

const forget = open => {
  if (open?.app) ask("apps.close", { app: open.app }).catch(() => {});
};

export function show(tool, args) {
  const { era } = app.get(),
    n = ++last,
    before = store.get().open;
  before?.cancel?.();
  forget(before);
  const asked = ask("apps.show", { era, tool, arguments: args, context: context() }, part =>
    change(n, () => ({ progress: part })),
  );
  store.set({
    open: {
      n,
      era,
      tool,
      arguments: args,
      state: "calling",
      began: performance.now(),
      cancel: asked.cancel,
      progress: null,
      mode: "inline",
      height: 0,
      messages: [],
      bytes: 0,
      count: 0,
    },
  });
  asked.then(
    given => change(n, () => ({ ...given, state: "shown", cancel: null })),
    error => change(n, () => ({ state: error.cancelled ? "closed" : "failed", error, cancel: null })),
  );
}

export async function close() {
  const { open, bridge } = store.get();
  if (!open) return;
  if (open.cancel) {
    open.cancel();
    return;
  }
  if (open.state === "shown" && bridge?.n === open.n) await bridge.teardown();
  change(open.n, () => ({ state: "closed", mode: "inline" }));
  forget(open);
}

// The server may have another version of the view that is open. If so, the frame begins anew, with the result it had
// and what the view has saved: `defserve dev` tells of every change of a file. What a view may send is bounded for each
// frame, so a server cannot have a new one as often as it likes.
const RELOAD_PAUSE = 2000; // ms
let looking = null,
  reloadedAt = -RELOAD_PAUSE;
async function look() {
  const pause = reloadedAt + RELOAD_PAUSE - performance.now();
  if (pause > 0) await new Promise(resolve => setTimeout(resolve, pause));
  const { open, bridge } = store.get();
  if (open?.state !== "shown") return;
  const given = await ask("apps.reload", { app: open.app, era: open.era });
  if (!given.url) return;
  if (bridge?.n === open.n) await bridge.teardown();
  reloadedAt = performance.now();
  change(open.n, () => given);
  toast(`The view of ${open.tool} was reloaded`);
}
// One look at a time. News that come meanwhile may be of a later change, so they lead to another.
function lookAgain() {
  const before = looking ?? Promise.resolve();
  const after = (looking = before
    .then(() => looking === after && look())
    .catch(error => toast(`The view could not be reloaded: ${error.message}`, "bad")));
}

export function startReloading() {
  on("changed", ({ era, kind }) => {
    if (era === store.get().open?.era && kind !== "prompts") lookAgain();
  });
  on("updated", ({ uri }) => {
    if (uri === store.get().open?.uri) lookAgain();
  });
  on("connection", ({ era, state }) => {
    if (era === store.get().open?.era && state === "open") lookAgain();
  });
}
