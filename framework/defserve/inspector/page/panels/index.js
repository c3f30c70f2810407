// The panels, in the order of the sidebar. A new panel is one more line here, and a table of verbs on the host's side.
// What a line says is known at once; the module behind `load` comes when the page has nothing better to do, or when the
// panel is opened, so that the page itself stays small. One of its exports is { Panel, keys, count?, finds?, start? }:
//   keys    [key, what it does] pairs, for the table    count  a hook that gives a number, or { hot: number }
//   finds   words => [{ title, hint, icon, run }], for Ctrl K   start  called once, when the module has come
import { createStore } from "../store.js";
import { tools } from "./tools.js";

const panel = (id, title, group, icon, key, load) => ({ id, title, group, icon, key, load });

export const panels = [
  tools,
  panel("resources", "Resources", "Server", "file", "r", () => import("./resources.js")),
  panel("prompts", "Prompts", "Server", "chat", "p", () => import("./prompts.js")),
  panel("apps", "Apps", "Server", "window", "a", () => import("./apps.js")),
  panel("tasks", "Tasks", "Server", "clock", "j", () => import("./tasks.js")),
  panel("events", "Events", "Server", "live", "v", () => import("./events.js")),
  panel("skills", "Skills", "Server", "book", "i", () => import("./skills.js")),
  panel("compare", "Compare", "Server", "swap", "c", () => import("./compare.js")),
  panel("evals", "Evals", "Server", "bars", null, () => import("./evals.js")),
  panel("wire", "Wire", "Protocol", "wire", "w", () => import("./wire.js")),
  panel("questions", "Questions", "Protocol", "question", "q", () => import("./questions.js")),
  panel("latency", "Latency", "Protocol", "bars", null, () => import("./latency.js")),
  panel("state", "State", "Extensions", "branch", "s", () => import("./state.js")),
  panel("live", "Live", "Extensions", "live", "l", () => import("./live.js")),
  panel("security", "Security", "Extensions", "shield", "e", () => import("./security.js")),
  panel("kernel", "Kernel", "Extensions", "servers", "k", () => import("./kernel.js")),
  panel("topics", "Topics", "Extensions", "people", null, () => import("./topics.js")),
];

// On a phone, these are the tabs at the bottom, with More as the fifth.
export const PHONE = ["tools", "wire", "state", "live"];
export const GROUPS = ["Server", "Protocol", "Extensions"];

// id → the whole panel, as soon as it is there; or { error }.
export const loaded = createStore({ tools });
const begun = new Map();

export function load({ id, load: fetch }) {
  if (!fetch || begun.has(id)) return begun.get(id);
  const coming = fetch().then(
    module => {
      const whole = Object.values(module).find(each => each?.Panel);
      whole.start?.();
      loaded.set({ [id]: whole });
    },
    error => {
      begun.delete(id);
      loaded.set({ [id]: { error } });
    },
  );
  begun.set(id, coming);
  return coming;
}

// One after the other, while nobody waits for anything.
export async function loadAll() {
  const idle = globalThis.requestIdleCallback ?? (run => setTimeout(run, 200));
  for (const each of panels) {
    await new Promise(resolve => idle(resolve));
    await load(each);
  }
}
