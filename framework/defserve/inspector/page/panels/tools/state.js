// The tools of each era, the arguments typed for each, and the last calls. The host keeps the calls; the rest is kept
// while the page is open, never longer.
import { ask, on, onOpen } from "../../socket.js";
import { app, createStore, toast } from "../../store.js";
import { initial, resolve } from "../../parts/form/schema.js";
import { own } from "../../parts/parsing.js";
import { plural } from "../../format.js";

const MOST_CALLS = 20;

export const store = createStore({
  lists: {}, // era → { tools, searched }
  errors: {}, // era → Failure
  values: {}, // tool → arguments
  calls: [], // newest first
  shown: null, // the number of the call that was chosen
  refused: null, // why the host did not begin a call
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
// What was typed. A saved session has nobody to call: its forms show what the tool was called with.
const savedOf = ({ calls }, { name }) => app.get().target?.saved && calls.find(each => each.tool === name)?.arguments;
export const valueOf = (state, tool) =>
  tool ? (own(state.values, tool.name) ?? (savedOf(state, tool) || startOf(tool))) : {};
export const setValue = (name, value) => store.set(state => ({ values: { ...state.values, [name]: value } }));

const change = (n, how) =>
  store.set(state => ({ calls: state.calls.map(call => (call.n === n ? { ...call, ...how(call) } : call)) }));

// A call as the host tells of it. `followed`: its parts and its outcome are here, or come.
const made = ({ number: n, began, ...told }, now, followed) => ({
  n,
  ...told,
  began: performance.now() - (now - began) * 1000,
  followed,
  progress: null,
  log: [],
  dropped: 0,
  parts: [],
});

// Call a tool. The host keeps the call; its parts come into the store as they come.
export function call(name, args) {
  const { era } = app.get();
  let n = null;
  const asked = ask("tools.call", { era, tool: name, arguments: args }, part => {
    if (!part.call) change(n, now => taken(now, part));
    else {
      n = part.call.number;
      const begun = made(part.call, part.call.began, true);
      store.set(state => ({ calls: [begun, ...state.calls].slice(0, MOST_CALLS), shown: n, refused: null }));
    }
  });
  ended(asked, () => n).then(() => load(era)); // what it needed may be granted now
}

// A call that another page made, or this one before it was loaded anew: from its beginning.
export function follow(n) {
  change(n, () => ({ followed: true, log: [], dropped: 0, parts: [], progress: null }));
  return ended(
    ask("tools.follow", { call: n }, part => change(n, now => taken(now, part))),
    () => n,
  );
}

function ended(asked, number) {
  return asked.then(
    outcome => change(number(), () => outcome),
    error => {
      if (number() === null) store.set({ refused: error });
      else if (error.lost)
        change(number(), () => ({ followed: false })); // the call goes on; it is followed again when the host is back
      else
        change(number(), now => ({
          state: error.cancelled ? "cancelled" : "failed",
          error: error.cancelled ? null : error,
          ms: now.ms ?? performance.now() - now.began,
        }));
    },
  );
}

export const cancel = ({ n }) => ask("tools.cancel", { call: n }).catch(() => {});

// Lines and parts are added to the lists that are there: there may be many of them.
function taken(now, { log = [], content = [], dropped = 0, progress, waterfall }) {
  now.log.push(...log);
  now.parts.push(...content);
  const first = now.first ?? log[0]?.ms ?? progress?.ms;
  return { first, dropped: now.dropped + dropped, ...(progress && { progress }), ...(waterfall && { waterfall }) };
}

// The calls that the host has kept. What is here in whole stays.
async function loadCalls() {
  const { calls, now } = await ask("tools.calls");
  store.set(state => ({
    calls: calls.map(told => {
      const known = state.calls.find(each => each.n === told.number);
      return known?.followed ? known : made(told, now, false);
    }),
  }));
}

// The call in view: the one that was chosen, if it is one of the tool in view; else the newest of that tool.
export const callInView = ({ calls, shown }, tool) =>
  calls.find(each => each.n === shown && each.tool === tool) ?? calls.find(each => each.tool === tool);

export const running = state => state.calls.find(each => each.state === "running");

export function start() {
  onOpen(() => loadCalls().catch(() => {}));
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
