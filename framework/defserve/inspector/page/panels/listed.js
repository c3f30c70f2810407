// What Resources and Prompts have in common: a list for each era, loaded when its conversation opens or changes.
import { ask, on } from "../socket.js";
import { app, createStore } from "../store.js";

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

// Those whose texts have all the words.
export function fitting(items, words, textsOf) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return items.filter(item => {
    const text = textsOf(item).filter(Boolean).join(" ").toLowerCase();
    return wanted.every(word => text.includes(word));
  });
}
