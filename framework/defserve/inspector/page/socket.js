// The one way to the host side. `ask` sends a request; `on` hears what the host says on its own.
import { app } from "./store.js";
import { fromJson } from "./parts/parsing.js";

const PAUSES = [300, 600, 1200, 2500, 5000];
const waiting = new Map(); // id → { resolve, reject, onPart }
const topics = new Map(); // topic → set of functions
const openings = new Set();
let socket = null,
  unsent = [], // what was asked while the socket opens
  lastId = 0,
  tries = 0,
  timer = null;

export class Failure extends Error {
  constructor(error) {
    super(error.message);
    Object.assign(this, {
      fix: error.fix,
      code: error.code,
      data: error.data,
      problems: error.problems,
      signIn: error.sign_in,
      at: Date.now(),
      cancelled: !!error.cancelled,
      lost: !!error.lost,
    });
  }
}

// `ask("tools.call", { tool, arguments }, part => …)` gives a promise with `cancel()`. It is rejected with a Failure.
export function ask(verb, args = {}, onPart) {
  const id = ++lastId;
  const promise = new Promise((resolve, reject) => {
    if (!socket || socket.readyState > WebSocket.OPEN) {
      reject(new Failure({ message: "The inspector is not connected." }));
      return;
    }
    waiting.set(id, { resolve, reject, onPart });
    send({ id, do: verb, with: args });
  });
  promise.cancel = () => {
    if (waiting.has(id)) send({ do: "cancel", of: id });
  };
  return promise;
}

function send(message) {
  const text = JSON.stringify(message);
  if (socket.readyState === WebSocket.CONNECTING) unsent.push(text);
  else socket.send(text);
}

// Calls `hear(data)` for each message of a topic. Gives a function that ends it.
export function on(topic, hear) {
  if (!topics.has(topic)) topics.set(topic, new Set());
  topics.get(topic).add(hear);
  return () => topics.get(topic).delete(hear);
}

// Calls `run` whenever the socket opens, also after it was lost.
export function onOpen(run) {
  openings.add(run);
  if (socket?.readyState === WebSocket.OPEN) run();
  return () => openings.delete(run);
}

export function connect() {
  clearTimeout(timer);
  const token = sessionStorage.getItem("defserve.token");
  if (!token) {
    app.set({ socket: "refused" });
    return;
  }
  const opened = new WebSocket(`ws://${location.host}/socket`, ["defserve-inspector", "token." + token]);
  socket = opened;
  let wasOpen = false;
  opened.onopen = () => {
    wasOpen = true;
    tries = 0;
    app.set({ socket: "open" });
    for (const text of unsent.splice(0)) opened.send(text);
    for (const run of [...openings]) run();
  };
  opened.onmessage = async event => {
    for (const message of fromJson(event.data)) {
      take(message);
      await null; // who waited for an answer goes on before the next message: else it would undo what that one says
    }
  };
  opened.onclose = () => {
    for (const { reject } of waiting.values()) reject(new Failure({ message: "The inspector went away.", lost: true }));
    waiting.clear();
    unsent = [];
    // A first socket that never opens was refused: the token is of an inspector that has ended.
    app.set({
      socket:
        !wasOpen && tries > 2 && app.get().socket === "opening"
          ? "refused"
          : wasOpen || app.get().socket === "lost"
            ? "lost"
            : "opening",
    });
    timer = setTimeout(connect, PAUSES[Math.min(tries++, PAUSES.length - 1)]);
  };
}

function take(message) {
  if ("on" in message) {
    for (const hear of [...(topics.get(message.on) ?? [])]) hear(message.data);
    return;
  }
  const asked = waiting.get(message.id);
  if (!asked) return;
  if ("part" in message) {
    asked.onPart?.(message.part);
    return;
  }
  waiting.delete(message.id);
  if ("error" in message) asked.reject(new Failure(message.error));
  else asked.resolve(message.ok);
}
