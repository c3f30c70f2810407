// Keys. Single letters work only while no field has the focus, and can be switched off.
import { useLayoutEffect, useRef } from "./vendor/preact.js";
import { app, openPanel } from "./store.js";

const layers = []; // the newest first to be asked
let leader = 0; // when G was pressed

// `useKeys({ "/": focusSearch, "ctrl+enter": call, r: repeat, escape: cancel })` while the component is shown. A
// handler that gives false has not used the key. With `active` false nothing is heard. Keys are heard as soon as the
// component is seen: an effect after the paint would lose those of somebody who is quick.
export function useKeys(table, active = true) {
  const current = useRef(table);
  current.current = table;
  useLayoutEffect(() => {
    if (!active) return undefined;
    const layer = { get: key => current.current[key] };
    layers.push(layer);
    return () => layers.splice(layers.indexOf(layer), 1);
  }, [active]);
}

const inField = target => target instanceof Element && !!target.closest("input, textarea, select, [contenteditable]");

export const keyName = event => (event.ctrlKey || event.metaKey ? "ctrl+" : "") + event.key.toLowerCase();

export function listenToKeys(panels) {
  addEventListener("keydown", event => {
    if (event.defaultPrevented || event.altKey || event.isComposing) return;
    const key = keyName(event);
    const letter = key.length === 1;
    if (letter && (inField(event.target) || !app.get().letters)) return;
    if (letter && Date.now() - leader < 1200) {
      leader = 0;
      const panel = panels.find(each => each.key === key);
      if (panel) {
        event.preventDefault();
        openPanel(panel);
        return;
      }
    }
    if (key === "g") {
      leader = Date.now();
      return;
    }
    for (const layer of [...layers].reverse()) {
      const run = layer.get(key);
      if (run && run(event) !== false) {
        event.preventDefault();
        return;
      }
    }
  });
}
