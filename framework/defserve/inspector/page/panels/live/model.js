// What the Live panel knows, and how it asks for it.
import { ask, on } from "../../socket.js";
import { app, createStore } from "../../store.js";

export const live = createStore({
  told: null,
  error: null,
  message: "",
  answer: "",
  before: null,
  after: null,
  busy: false,
  failed: null,
  channel: null,
});

// Each feature set has a colour, by its place in the server's list.
const COLOURS = ["k3", "k1", "k5", "k4", "k2", "k6"];
export const colourOf = (told, name) =>
  COLOURS[
    Math.max(
      0,
      told.sets.findIndex(each => each.name === name),
    ) % COLOURS.length
  ];

// One answer of the host at a time; what was asked for before counts no more.
let newest = 0;
export async function take(verb = "live.overview", args = {}) {
  const mine = ++newest,
    { era } = app.get();
  try {
    const told = await ask(verb, { era, ...args });
    if (mine === newest) live.set({ told: { ...told, era }, error: null });
  } catch (error) {
    if (mine === newest) live.set({ error });
  }
}

const withRow = (rows, row, isFirst) =>
  rows.some(each => each.number === row.number)
    ? rows.map(each => (each.number === row.number ? row : each))
    : isFirst
      ? [row, ...rows].slice(0, 300)
      : [...rows, row].slice(-300);

export function listen() {
  return on("live", ({ kind, row }) => {
    const { told } = live.get();
    if (!told?.version) return;
    if (kind === "event") live.set({ told: { ...told, events: withRow(told.events, row, true) } });
    else if (kind === "message") live.set({ told: { ...told, messages: withRow(told.messages, row, false) } });
    else take();
  });
}

// The hooks before, and with an answer also those after.
export async function run() {
  const { message, answer, busy, told } = live.get(),
    { era } = app.get();
  if (busy || !message.trim()) return;
  live.set({ busy: true, failed: null });
  try {
    const before = await ask("live.before", { era, message });
    live.set({ before: { ...before, message }, after: null });
    if (answer.trim() && told?.after) live.set({ after: { ...(await ask("live.after", { era, answer })), answer } });
  } catch (failed) {
    live.set({ failed });
  }
  live.set({ busy: false });
}
