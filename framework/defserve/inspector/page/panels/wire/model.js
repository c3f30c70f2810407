// The timeline as the page sees it. Messages stay in the host: the page holds the rows around the view and asks by
// index.
import { ask, onOpen } from "../../socket.js";
import { app, createStore, toast } from "../../store.js";
import { plural } from "../../format.js";
import { saveFile } from "../../parts/content.js";

const HELD = 2000;
const AROUND = 100;
const TYPING_MS = 120;

export const wire = createStore({
  text: "", // the filter as it is typed
  terms: [],
  problem: null,
  query: { filter: "", kind: "all", answers: false, hides_own: true }, // what is shown; `from` and `to` of a span
  rows: null,
  messages: 0,
  errors: 0,
  overview: null,
  paused: false,
  fresh: 0, // rows that came while it was paused
  selected: null, // { index, seq }
  open: false,
  tab: "message",
  lit: null, // the id under the pointer
  turn: 0, // counts up when rows came
  ticked: new Set(), // calls to be saved as a test, by their numbers
});

const held = new Map(); // index → row
let range = [0, 0],
  asked = null,
  fetching = false,
  missed = false, // more was asked for while rows were on their way
  shown = null,
  newest = null,
  timer = null;

export const rowAt = index => held.get(index);
export const heldRows = () => held.values();

// Only while the panel is in view: nobody else needs rows.
export function follow() {
  asked?.cancel();
  held.clear();
  shown = newest = null;
  const own = ask("wire.follow", wire.get().query, part => {
    if (asked === own) take(part);
  });
  asked = own;
  own.catch(() => {});
}

export function unfollow() {
  asked?.cancel();
  asked = null;
}

export const start = () =>
  onOpen(() => {
    if (asked) follow();
  });

function take(part) {
  newest = part;
  if (wire.get().paused && shown) {
    wire.set({ fresh: Math.max(0, part.rows + part.dropped - shown.rows - shown.dropped) });
    return;
  }
  const moved = shown && (shown.version !== part.version || shown.dropped !== part.dropped);
  if (moved) held.clear();
  shown = part;
  wire.set({ rows: part.rows, messages: part.messages, errors: part.errors, overview: part.overview, fresh: 0 });
  if (moved) findAgain();
  fetchRows(true);
}

async function findAgain() {
  const { selected, query } = wire.get();
  if (selected?.seq == null) return;
  const found = await ask("wire.find", { ...query, seq: selected.seq }).catch(() => ({ place: null }));
  if (wire.get().selected?.seq === selected.seq)
    wire.set({
      selected: found.place === null ? { ...selected, index: null } : { seq: selected.seq, index: found.place },
    });
}

export function look(first, last) {
  range = [first, last];
  fetchRows(false);
}

const isOpen = row => row.kind === "request" && row.ms === undefined && row.note !== "cancelled";

// Asks for what is missing in view, and for what may have changed: requests that were not answered yet.
async function fetchRows(again) {
  if (!shown) return;
  if (fetching) {
    missed = true;
    return;
  }
  let [first, last] = [Math.max(0, range[0]), Math.min(range[1], shown.rows)];
  const wanted = index => !held.has(index) || (again && isOpen(held.get(index)));
  while (first < last && !wanted(first)) first++;
  while (last > first && !wanted(last - 1)) last--;
  if (first >= last) return;
  const { query } = wire.get();
  const shift = newest.dropped - shown.dropped; // rows that were forgotten while it was paused
  const start = Math.max(0, first - AROUND);
  fetching = true;
  try {
    const got = await ask("wire.rows", {
      ...query,
      start: Math.max(0, start - shift),
      stop: Math.min(shown.rows, last + AROUND) - shift,
    });
    if (query !== wire.get().query || !shown) return;
    // The timeline was cleared, or a row left its middle, while these rows were on their way.
    if (got.version < shown.version || got.dropped < shown.dropped) return;
    // A row that is complete stays the same object, so that it is not drawn anew.
    got.rows.forEach((row, at) => {
      const index = got.start + shift + at,
        before = held.get(index);
      if (!before || isOpen(before) || before.seq !== row.seq) held.set(index, row);
    });
    for (const index of held.keys()) {
      if (held.size <= HELD) break;
      if (index < range[0] - AROUND || index > range[1] + AROUND) held.delete(index);
    }
    const { selected } = wire.get();
    if (selected && selected.seq == null && held.has(selected.index)) select(selected.index);
    wire.set(state => ({ turn: state.turn + 1 }));
  } catch {
    /* the socket is gone; when it is back everything is asked for anew */
  } finally {
    fetching = false;
    // What came or was scrolled to in the meantime, unless the host has no more.
    if (missed || range[0] < first - AROUND || range[1] > last + AROUND) {
      missed = false;
      fetchRows(true);
    }
  }
}

export const select = index => wire.set({ selected: { index, seq: held.get(index)?.seq ?? null } });

export function see(change) {
  wire.set(state => ({ query: { ...state.query, ...change }, selected: null, rows: null }));
  follow();
}

// What is typed is checked first: while it does not parse, the list stays.
export function typed(text) {
  wire.set({ text });
  clearTimeout(timer);
  timer = setTimeout(() => apply(text), TYPING_MS);
}

export async function apply(text) {
  clearTimeout(timer);
  const { terms = [], problem = null } = await ask("wire.filter", { filter: text }).catch(() => ({}));
  if (wire.get().text !== text) return;
  wire.set({ terms, problem });
  if (!problem && text.trim() !== wire.get().query.filter) see({ filter: text.trim() });
}

export function setText(text) {
  wire.set({ text });
  return apply(text);
}

export function pause() {
  const paused = !wire.get().paused;
  wire.set({ paused, fresh: 0 });
  if (!paused && newest) take(newest);
}

// Everything that is shown, as a file. It is fetched in pieces, so that neither side holds more than it must.
export async function save(onProgress) {
  const { query } = wire.get();
  const pieces = [];
  for (let start = 0; start !== null;) {
    const got = await ask("wire.save", { ...query, start });
    pieces.push(new Blob([got.text]));
    start = got.next;
    onProgress?.(start === null ? 1 : start / got.of);
  }
  saveFile(`${serverName()}-messages.jsonl`, "application/jsonl", new Blob(pieces));
}

// Everything that the inspector knows, as a file that `defserve inspect` opens.
export async function saveSession(onProgress) {
  const first = await ask("session.save"),
    { stop } = first,
    pieces = [new Blob([first.text])];
  for (let start = first.next; start !== null;) {
    const got = await ask("session.save", { start, stop });
    pieces.push(new Blob([got.text]));
    start = got.next;
    onProgress?.(start === null ? 1 : (start - first.next) / Math.max(1, stop - first.next));
  }
  const packed = new Blob(pieces).stream().pipeThrough(new CompressionStream("gzip"));
  saveFile(`${serverName()}.defsession`, "application/gzip", await new Response(packed).blob());
}

const serverName = () => (app.get().connections[app.get().era]?.server?.name ?? "server").replace(/[^\w.-]+/g, "-");

// A call of ours that was answered can be part of a test.
export const canTick = row =>
  row?.method === "tools/call" &&
  row.kind === "request" &&
  row.direction === "sent" &&
  row.ms !== undefined &&
  !row.note;

export function tick(seq) {
  const ticked = new Set(wire.get().ticked);
  if (!ticked.delete(seq)) ticked.add(seq);
  wire.set({ ticked });
}

// The ticked calls as one file for pytest.
export async function saveTest() {
  try {
    const { text, name, left } = await ask("session.test", { seqs: [...wire.get().ticked] });
    saveFile(name, "text/x-python", text);
    toast(`Saved as ${name}${left ? `, without ${plural(left, "call")} of another era` : ""}`, "ok");
    wire.set({ ticked: new Set() });
  } catch (error) {
    toast(`The test was not saved: ${error.message}`, "bad");
  }
}
