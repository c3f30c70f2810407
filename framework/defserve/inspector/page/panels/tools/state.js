// The tools of each era, the arguments typed for each, and the last calls. Kept while the page is open, never longer.
import { ask, on } from "../../socket.js";
import { app, createStore, toast } from "../../store.js";
import { initial, resolve } from "../../parts/form/schema.js";
import { plural } from "../../format.js";

const MOST_CALLS = 20,
  MOST_PARTS = 5000;

export const store = createStore({
  lists: {}, // era → { tools, searched }
  errors: {}, // era → Failure
  values: {}, // tool → arguments
  calls: [], // newest first
  shown: null, // the number of the call in view
});

const byName = list => new Map((list?.tools ?? []).map(tool => [tool.name, tool]));

// How many tools differ between two lists.
function differences(before, after) {
  const old = byName(before),
    fresh = byName(after);
  const names = new Set([...old.keys(), ...fresh.keys()]);
  return [...names].filter(
    name => JSON.stringify(old.get(name)?.definition) !== JSON.stringify(fresh.get(name)?.definition),
  ).length;
}

export async function load(era) {
  if (!era) return;
  try {
    const list = await ask("tools.list", { era });
    const before = store.get().lists[era];
    const changed = before ? differences(before, list) : 0;
    if (changed) toast(`${plural(changed, "tool")} changed`);
    store.set(state => ({ lists: { ...state.lists, [era]: list }, errors: { ...state.errors, [era]: null } }));
  } catch (error) {
    // While the server is away the list stays, and the banner says why.
    const away = app.get().connections[era]?.state !== "open" && store.get().lists[era];
    if (!away) store.set(state => ({ errors: { ...state.errors, [era]: error } }));
  }
}

export const schemaOf = tool => tool?.schema ?? {};
export const startOf = tool => initial(resolve(schemaOf(tool), schemaOf(tool)), schemaOf(tool)) ?? {};
export const valueOf = (state, tool) => (tool ? (state.values[tool.name] ?? startOf(tool)) : {});
export const setValue = (name, value) => store.set(state => ({ values: { ...state.values, [name]: value } }));

let last = 0;
const change = (n, how) =>
  store.set(state => ({ calls: state.calls.map(call => (call.n === n ? { ...call, ...how(call) } : call)) }));

// Call a tool. Its parts come into the store as they come.
export function call(name, args) {
  const { era } = app.get(),
    n = ++last;
  const begun = {
    n,
    tool: name,
    era,
    arguments: args,
    began: performance.now(),
    state: "running",
    progress: null,
    log: [],
    parts: [],
  };
  const asked = ask("tools.call", { era, tool: name, arguments: args }, part => change(n, now => taken(now, part)));
  store.set(state => ({ calls: [{ ...begun, cancel: asked.cancel }, ...state.calls].slice(0, MOST_CALLS), shown: n }));
  asked
    .then(
      ({ result, failed, ms, first, request, era: spoken }) =>
        change(n, () => ({ state: failed ? "failed" : "done", result, ms, first, request, era: spoken })),
      error =>
        change(n, now => ({
          state: error.cancelled ? "cancelled" : "failed",
          error: error.cancelled ? null : error,
          ms: performance.now() - now.began,
        })),
    )
    .then(() => load(era)); // what it needed may be granted now
  return n;
}

function taken(now, part) {
  const first = now.first ?? part.ms;
  if (part.log) return { first, log: [...now.log.slice(-MOST_PARTS), { ...part.log, ms: part.ms }] };
  if ("content" in part) return { first, parts: [...now.parts.slice(-MOST_PARTS), part.content] };
  return { first, progress: { ...part, at: performance.now() } };
}

export const running = state => state.calls.find(each => each.state === "running");

export function start() {
  let loaded = "";
  app.subscribe(({ era, connections }) => {
    const told = connections[era];
    const key = told?.state === "open" ? `${era} ${told.at}` : "";
    if (key && key !== loaded) {
      loaded = key;
      load(era);
    }
  });
  // A permission may have been decided.
  on("question.over", () => {
    if (running(store.get())) load(app.get().era);
  });
  on("changed", ({ era, kind }) => {
    if (kind === "tools" && store.get().lists[era]) load(era);
  });
}
