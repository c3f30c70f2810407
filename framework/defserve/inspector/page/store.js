// State that several parts of the page share. A store holds one object; who uses a part of it is drawn anew when that
// part changes.
import { useLayoutEffect, useState } from "./vendor/preact.js";

export function createStore(initial) {
  let state = initial;
  const listeners = new Set();
  return {
    get: () => state,
    // Takes the changed members, or a function of the state that gives them.
    set(change) {
      state = { ...state, ...(typeof change === "function" ? change(state) : change) };
      for (const tell of [...listeners]) tell(state);
    },
    subscribe(tell) {
      listeners.add(tell);
      return () => listeners.delete(tell);
    },
  };
}

// `select` must give the same value (===) while nothing has changed. Subscribed before the paint: what somebody types
// into a field that is seen must not be drawn over with what was there before.
export function useStore(store, select = state => state) {
  const [value, setValue] = useState(() => select(store.get()));
  useLayoutEffect(() => {
    const look = () => setValue(() => select(store.get()));
    look();
    return store.subscribe(look);
  }, []);
  return value;
}

// What the frame of the page knows. Panels have stores of their own.
export const app = createStore({
  socket: "opening", // opening, open, lost, refused
  target: { address: "", words: [] },
  era: "", // the era that the page shows and calls in
  connections: {}, // era → what the host tells of its conversation
  status: {},
  build: null, // why the newest version of the server does not start
  account: { state: "idle", kept: null, doneAt: 0 }, // the sign-in: how far it is, what is kept
  questions: [],
  route: { panel: "tools", rest: "" },
  items: {}, // panel → the item that its address named last
  theme: document.documentElement.dataset.theme,
  overlay: null, // "palette", "keys", or null
  toasts: [],
  letters: localStorage.getItem("defserve.letters") !== "off", // single letters are keys
  more: false, // on a phone: the list of all panels
});

export const connection = state => state.connections[state.era];

const addressOf = (panel, rest) => "#" + panel + (rest === "" ? "" : "/" + encodeURIComponent(rest));

// What a panel opens with: those of what a server offers, with the item that they showed last. The others have what is
// new in view, or keep their own place.
export const lastItem = ({ id, group }, items) => (group === "Server" && items[id]) || "";

export const addressOfPanel = (panel, items) => addressOf(panel.id, lastItem(panel, items));

export function openPanel(panel) {
  go(panel.id, lastItem(panel, app.get().items));
}

export function go(panel, rest = "") {
  const hash = addressOf(panel, rest);
  if (location.hash !== hash) location.hash = hash;
  app.set({ more: false });
  readRoute(); // at once: the event of the browser comes later, and the next key may come before it
}

export function readRoute() {
  const [panel, ...rest] = location.hash.replace(/^#/, "").split("/");
  let text = rest.join("/");
  try {
    text = decodeURIComponent(text);
  } catch {
    /* an address typed by hand */
  }
  const route = { panel: panel || "tools", rest: text };
  app.set(state => ({ route, items: { ...state.items, [route.panel]: text } }));
}

export function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("defserve.theme", theme);
  app.set({ theme });
}

let toastId = 0;
// Only for what happened elsewhere; an error stays where it belongs.
export function toast(text, tone = "") {
  const id = ++toastId;
  app.set(state => ({ toasts: [...state.toasts.slice(-2), { id, text, tone }] }));
  setTimeout(() => app.set(state => ({ toasts: state.toasts.filter(each => each.id !== id) })), 6000);
}
