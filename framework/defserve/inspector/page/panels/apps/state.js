// The tools with a view, and the view that is open: one at a time.
import { ask } from "../../socket.js";
import { app, createStore } from "../../store.js";
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
