// Ctrl K, which finds anything, and the table of keys.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { app, openPanel, useStore } from "./store.js";
import { useKeys } from "./keys.js";
import { Icon } from "./parts/icons.js";
import { Button, Switch } from "./parts/controls.js";
import { Dialog, useFocus, useTrap } from "./parts/layers.js";

const close = () => app.set({ overlay: null });
const MOST = 40;
const AGAIN = [400, 1200]; // ms: what a panel learns while somebody types is found too

// `actions` are { title, icon, run }.
export function Palette({ panels, loaded, actions }) {
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const [later, setLater] = useState({ words: null, items: [] });
  const [turn, setTurn] = useState(0);
  const list = useRef(null);
  const own = useRef(null);
  useFocus(own, "input");
  useTrap(own);
  // What is known here is there at once, so that Enter means what is typed. What the host has to be asked for follows.
  const { now, coming } = useMemo(() => {
    const own = panels
      .filter(panel => panel.title.toLowerCase().includes(words.toLowerCase()))
      .map(panel => ({ title: panel.title, hint: "panel", icon: panel.icon, run: () => openPanel(panel) }));
    const all = panels.map(panel => loaded[panel.id]?.finds?.(words) ?? []);
    const here = all.filter(Array.isArray).flat();
    const acts = actions
      .filter(each => each.title.toLowerCase().includes(words.toLowerCase()))
      .map(each => ({ ...each, hint: "action" }));
    return {
      now: words ? [...here, ...acts, ...own] : [...own, ...acts, ...here],
      coming: all.filter(each => !Array.isArray(each)),
    };
  }, [words, turn]);
  useLayoutEffect(() => {
    setAt(0);
    const timers = AGAIN.map(after => setTimeout(() => setTurn(count => count + 1), after));
    return () => timers.forEach(clearTimeout);
  }, [words]);
  useEffect(() => {
    let current = true;
    Promise.all(coming.map(each => Promise.resolve(each).catch(() => []))).then(items => {
      if (current) setLater({ words, items: items.flat() });
    });
    return () => {
      current = false;
    };
  }, [words, turn]);
  const found = [...now, ...(later.words === words ? later.items : [])].slice(0, MOST);
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [at]);
  const run = item => {
    close();
    item?.run();
  };
  const onKeyDown = event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((at + step + found.length) % Math.max(1, found.length));
    }
    if (event.key === "Enter") {
      event.preventDefault();
      run(found[at]);
    }
  };
  useKeys({ escape: close });
  return html`<div
    class="scrim high"
    onMouseDown=${event => {
      if (event.target === event.currentTarget) close();
    }}
  >
    <div class="dlg palette" role="dialog" aria-modal="true" aria-label="Find" ref=${own}>
      <label class="in palettein"
        ><${Icon} name="search" s /><input
          class="bare grow"
          role="combobox"
          aria-expanded="true"
          aria-controls="found"
          aria-activedescendant=${found.length ? `found-${at}` : null}
          aria-label="Find a tool, call, message, panel, action"
          placeholder="Find a tool, call, message, panel, action"
          value=${words}
          onInput=${event => setWords(event.target.value)}
          onKeyDown=${onKeyDown}
        /><kbd>Esc</kbd></label
      >
      <div id="found" role="listbox" aria-label="Found" class="found" ref=${list}>
        ${found.map(
          (item, index) =>
            html`<div
              role="option"
              key=${item.title + index}
              id=${`found-${index}`}
              aria-selected=${String(index === at)}
              class=${`nav${index === at ? " at" : ""}`}
              onMouseMove=${event => {
                if (event.movementX || event.movementY) setAt(index);
              }}
              onClick=${() => run(item)}
            >
              <${Icon} name=${item.icon} /><span class=${`cut${item.mono ? " mono" : ""}`}>${item.title}</span
              ><span class="n">${item.hint}</span>
            </div>`,
        )}
        ${found.length === 0 && html`<p class="dim nothing">Nothing fits.</p>`}
      </div>
    </div>
  </div>`;
}

const ALWAYS = [
  ["Ctrl K", "jump to any tool, message, panel"],
  ["/", "search or filter of this panel"],
  ["↑ ↓, J K", "next, previous row"],
  ["Enter, Space", "open the row"],
  ["[ ]", "previous, next pane"],
  ["E", "the other era"],
  ["Esc", "close the top layer, clear the search"],
  ["?", "all of these"],
];

export function KeysTable({ panels, panel, keys = [] }) {
  const letters = useStore(app, state => state.letters);
  const switchLetters = on => {
    localStorage.setItem("defserve.letters", on ? "on" : "off");
    app.set({ letters: on });
  };
  const rows = [...ALWAYS, ...panels.filter(each => each.key).map(each => [`G ${each.key.toUpperCase()}`, each.title])];
  return html`<${Dialog}
    title="Shortcuts"
    light
    wide
    scrolls
    onClose=${close}
    foot=${html`<${Switch} label="Single letters are keys" on=${letters} onChange=${switchLetters} />
      <span class="grow small">Single letters are keys</span><${Button} onClick=${close} data-first="">Close<//>`}
  >
    <div class="keystable">
      ${[
        ["Everywhere", rows],
        [panel.title, keys],
      ].map(
        ([title, all]) =>
          all.length > 0 &&
          html`<div key=${title}>
            <h3>${title}</h3>
            <dl>
              ${all.map(
                ([key, does]) =>
                  html`<div>
                    <dt><kbd>${key}</kbd></dt>
                    <dd>${does}</dd>
                  </div>`,
              )}
            </dl>
          </div>`,
      )}
    </div><//
  >`;
}
