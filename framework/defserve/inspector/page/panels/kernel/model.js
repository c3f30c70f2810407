// What the Kernel panel knows, and its words.
import { ask } from "../../socket.js";
import { app, createStore } from "../../store.js";
import { plural, quoted } from "../../format.js";

export const store = createStore({
  told: null, // { way, verbs, status, servers, note }
  error: null,
  busy: {}, // server → the verb that is being done
  failed: {}, // server → why the last one was not done
});

// A state → its tone, its shape, its word. Words are those of the kernel.
const STATES = {
  connected: ["ok", "dot"],
  connecting: ["acc", "ring"],
  restarting: ["warn", "ring"],
  draining: ["acc", "ring"],
  registered: ["faint", "ring"],
  disconnected: ["faint", "ring"],
  error: ["bad", "cross"],
};
const UNWELL = { late: "answers late", degraded: "degraded", unhealthy: "unhealthy" };
const LOOKS = new Set(["restarting", "error"]);

export function stateOf(row) {
  const [tone, shape] = STATES[row.state] ?? ["dim", "ring"];
  const held = row.held?.length ?? 0;
  if (row.state === "connected" && held) return { tone: "warn", shape: "dot", words: "tools held" };
  if (row.state === "connected" && UNWELL[row.health]) return { tone: "warn", shape: "dot", words: UNWELL[row.health] };
  if (row.state === "draining" && row.calls) return { tone, shape, words: `draining, ${plural(row.calls, "call")}` };
  if (row.state === "registered" && row.note) return { tone, shape, words: "not enabled" };
  if (["registered", "disconnected"].includes(row.state))
    return { tone, shape, words: row.stopped ? "stopped" : row.start === "lazy" ? "starts when called" : row.state };
  return { tone, shape, words: row.state };
}

export const needsLook = row => LOOKS.has(row.state) || stateOf(row).tone === "warn";
export const runs = row => ["connected", "connecting", "restarting", "draining"].includes(row.state);
export const failedShare = row => (row.calls_total ? (row.errors_total ?? 0) / row.calls_total : null);

// Seconds since its state changed, while it is connected.
export function upOf(row, now = Date.now()) {
  if (row.state !== "connected") return null;
  if (row.uptime_secs != null) return row.uptime_secs;
  return row.since ? Math.max(0, (now - Date.parse(row.since)) / 1000) : null;
}

export function span(seconds) {
  if (seconds == null) return "–";
  const [d, h, m, s] = [seconds / 86400, (seconds / 3600) % 24, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} m` : m ? `${m} m` : `${s} s`;
}

export const ms = value => (value == null ? "–" : value < 10 ? value.toFixed(1) : String(Math.round(value)));

// A command line or an address → how it is reached, and the rest. Programs and long paths are shown by their last part.
export function whereOf(text) {
  const [, scheme, rest] = /^([a-z][a-z0-9+.-]*):\/\/(.*)$/i.exec(text ?? "") ?? [];
  if (scheme) return [scheme, rest];
  const words = (text ?? "")
    .split(" ")
    .map((word, at) => word.replace(at ? /^\/(?:[^/]+\/){2,}(?=[^/])/ : /^.*\/(?=[^/])/, at ? "…/" : ""));
  return text ? ["stdio", words.join(" ")] : ["", ""];
}

// The same, at a terminal.
export function command(told, verb, id, ...words) {
  const file = told.status?.config ? ` --config ${quoted(told.status.config)}` : "";
  const rest = [...(id ? [id] : []), ...words].map(word => ` ${quoted(word)}`).join("");
  return `defserve kernel ${verb}${rest}${file}`;
}

// `held`: the tool, and the digest of what was looked at.
export async function run(verb, server = "", held = {}) {
  store.set(state => ({ busy: { ...state.busy, [server]: verb }, failed: { ...state.failed, [server]: null } }));
  try {
    return await ask("kernel.do", { era: app.get().era, verb, ...(server && { server }), ...held });
  } catch (error) {
    store.set(state => ({ failed: { ...state.failed, [server]: error } }));
    return null;
  } finally {
    store.set(state => ({ busy: { ...state.busy, [server]: null } }));
  }
}

// `previous → new: reason` lines as spans of the last `seconds`: [from, to, state], from 0 (then) to 1 (now).
export function spansOf(lines, seconds, state, now = Date.now() / 1000) {
  const changes = lines
    .filter(line => line.kind === "state")
    .map(line => [Date.parse(line.time) / 1000, ...(/^(\w+) → (\w+):/.exec(line.text)?.slice(1) ?? [])])
    .filter(each => each[2]);
  const start = now - seconds,
    spans = [];
  let from = start,
    current = changes.find(([time]) => time > start)?.[1] ?? state;
  for (const [time, , next] of changes) {
    if (time <= start) {
      current = next;
      continue;
    }
    spans.push([(from - start) / seconds, (time - start) / seconds, current]);
    from = time;
    current = next;
  }
  spans.push([(from - start) / seconds, 1, current]);
  return {
    spans,
    ends: changes
      .filter(([time, before, next]) => time > start && before === "connected" && next !== "draining")
      .map(([time]) => (time - start) / seconds),
  };
}
