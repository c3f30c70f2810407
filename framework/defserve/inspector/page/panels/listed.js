// What the panels of a server's items have in common: a list for each era, loaded when its conversation opens or
// changes, and the pane at the left, where an item is searched and chosen.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { plural } from "../format.js";
import { useKeys } from "../keys.js";
import { ask, on } from "../socket.js";
import { app, createStore, go, useStore } from "../store.js";
import { Button, Search } from "../parts/controls.js";
import { List, enters } from "../parts/lists.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Pane } from "../parts/panes.js";

// `verb` lists them; `kind` is the word of the server's news about the list.
export function listed(verb, kind) {
  const store = createStore({ lists: {}, errors: {} });
  const load = async era => {
    if (!era) return;
    try {
      const list = await ask(verb, { era });
      store.set(state => ({ lists: { ...state.lists, [era]: list }, errors: { ...state.errors, [era]: null } }));
    } catch (error) {
      store.set(state => ({ errors: { ...state.errors, [era]: error } }));
    }
  };
  const start = () => {
    let loaded = "";
    const look = ({ era, connections }) => {
      const told = connections[era];
      const key = told?.state === "open" ? `${era} ${told.at}` : "";
      if (key && key !== loaded) {
        loaded = key;
        load(era);
      }
    };
    app.subscribe(look);
    look(app.get());
    on("changed", told => {
      if (told.kind === kind && store.get().lists[told.era]) load(told.era);
    });
  };
  return { store, load, start };
}

export const isWide = () => innerWidth >= 720;

export const firstLine = text =>
  String(text ?? "")
    .trim()
    .split("\n")[0];

// Those whose texts have all the words.
export function fitting(items, words, textsOf) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return items.filter(item => {
    const text = textsOf(item).filter(Boolean).join(" ").toLowerCase();
    return wanted.every(word => text.includes(word));
  });
}

// The state of a panel: what is listed in this era, what was typed to find it, which item the address names.
// `itemsOf` takes the list; `first` chooses the item that a wide page opens with; `keys` are those of the panel itself.
export function useItems(store, panel, { itemsOf, textsOf, keyOf, first = all => all[0], keys }) {
  const era = useStore(app, state => state.era),
    chosen = useStore(app, state => state.route.rest);
  const { lists, errors } = useStore(store);
  const [words, setWords] = useState("");
  const [view, setView] = useState(chosen ? "form" : "list");
  const search = useRef(null);
  const list = lists[era],
    all = list ? itemsOf(list) : [];
  const item = all.find(each => keyOf(each) === chosen);
  useEffect(() => {
    if (!chosen && !location.hash.includes("/") && all.length && isWide()) go(panel, keyOf(first(all)));
  }, [chosen, all.length]);
  useKeys({
    "/": () => {
      search.current?.focus();
      search.current?.select();
    },
    ...keys?.({ era, item, setView }),
  });
  const found = fitting(all, words, textsOf);
  const error = errors[era];
  return { panel, keyOf, era, chosen, list, error, all, found, item, words, setWords, view, setView, search };
}

export const group = (key, label, items) => ({
  key,
  label,
  items,
  head:
    items.length > 0 &&
    html`<div class="group"><span class="grow">${label}</span><span class="num">${items.length}</span></div>`,
});
// The pane at the left. `items` is what `useItems` returns; `noun` names one item; `groups` takes the items found;
// `without` says why there is none, and where to go instead. `focus` finds what gets the keyboard when one is opened.
// `without` says why there is none, and where to go instead. `focus` finds what has the keyboard once an item is open.
export function ItemPane({ items, noun, icon, groups, row, load, focus, without, children }) {
  const { panel, keyOf, era, chosen, list, error, all, found, words, setWords, setView, search } = items;
  const element = useRef(null);
  const name = `${noun[0].toUpperCase()}${noun.slice(1)}s`,
    select = key => go(panel, key);
  const onKeyDown = event => {
    if (enters(event) && found.length) {
      event.preventDefault();
      select(keyOf(found[0]));
      element.current?.focus();
    }
  };
  const onOpen = () => {
    setView("form");
    if (focus && isWide()) requestAnimationFrame(() => document.querySelector(`.t-form ${focus}`)?.focus());
  };
  const none = () =>
    words
      ? html`<${Empty}
          icon="search"
          title=${`No ${noun} fits “${words}”`}
          action=${html`<${Button} small keys="Esc" onClick=${() => setWords("")}>Clear the search<//>`}
        />`
      : html`<${Empty}
          icon=${icon}
          title=${`No ${noun}s`}
          action=${html`<${Button} small onClick=${() => go(without.go)}>Go to ${without.to}<//>`}
          >${list.offered ? `This server lists no ${noun}s in this era.` : without.text}<//
        >`;
  return html`<${Pane} label=${name} class="t-list"
    ><div class="head">
      <${Search}
        value=${words}
        onInput=${setWords}
        placeholder=${`Search ${plural(all.length, noun)}`}
        inputRef=${search}
        onKeyDown=${onKeyDown}
      />
    </div>
    ${
      error &&
      html`<div class="pad">
        <${ErrorNote} error=${error} fact=${`The ${noun}s could not be listed.`} onRetry=${() => load(era)} />
      </div>`
    }
    ${
      !list
        ? error
          ? html`<div class="grow"></div>`
          : html`<${Loading} rows=${4} />`
        : found.length
          ? html`<${List}
              label=${name}
              id=${noun}
              listRef=${element}
              keyOf=${keyOf}
              selected=${chosen}
              rowClass="tool q"
              onSelect=${select}
              onOpen=${onOpen}
              row=${row}
              groups=${groups ? groups(found) : [{ key: panel, label: name, items: found }]}
            />`
          : html`<div class="body">${none()}</div>`
    }
    ${children}<//
  >`;
}
