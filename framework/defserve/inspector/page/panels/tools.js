// Tools: find one, call it, read what it gives.
import { html, useState } from "../vendor/preact.js";
import { ask, on, onOpen } from "../socket.js";
import { app, createStore, go, useStore } from "../store.js";
import { Panes, Pane } from "../parts/panes.js";
import { List } from "../parts/lists.js";
import { Mark } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { Button } from "../parts/controls.js";
import { ErrorNote } from "../parts/notes.js";

export const toolStore = createStore({ lists: {}, error: null });

export async function load(era) {
  if (!era) return;
  try {
    const list = await ask("tools.list", { era });
    toolStore.set(state => ({ lists: { ...state.lists, [era]: list }, error: null }));
  } catch (error) {
    toolStore.set({ error });
  }
}

function Panel() {
  const era = useStore(app, state => state.era);
  const { lists, error } = useStore(toolStore);
  const selected = useStore(app, state => state.route.rest);
  const [text, setText] = useState("{}");
  const [result, setResult] = useState(null);
  const all = lists[era]?.tools ?? [];
  const call = async () => {
    try { setResult(await ask("tools.call", { era, tool: selected, arguments: JSON.parse(text) })); } catch (failed) { setResult({ failed }); }
  };
  return html`<${Panes} id="tools" class="p-tools" title="Tools">
    <${Pane} label="Tools" class="t-list">${error && html`<${ErrorNote} error=${error} onRetry=${() => load(era)} />`}
      <${List} label="Tools" groups=${[{ key: "tools", items: all }]} keyOf=${tool => tool.definition.name} selected=${selected} rowClass="tool" onSelect=${name => go("tools", name)}
        row=${tool => html`<${Mark} risk=${tool.mark} /><span class="nm cut">${tool.definition.name}</span><span class="tok">${tool.tokens}</span><span class="d cut">${tool.definition.description}</span>`} /><//>
    <${Pane} label=${selected || "Tool"} class="t-form"><div class="body"><textarea class="mono" aria-label="Arguments" value=${text} onInput=${event => setText(event.target.value)}></textarea></div>
      <div class="bar"><${Button} primary icon="play" onClick=${call}>Call<//></div><//>
    <${Pane} label="Result" class="t-res"><div class="body">${result && html`<${Json} value=${result} />`}</div><//><//>`;
}

export const tools = {
  id: "tools", title: "Tools", group: "Server", icon: "tool", key: "t", keys: [["Ctrl Enter", "call"], ["R", "repeat the last call"]],
  Panel,
  count: () => {
    const era = useStore(app, state => state.era);
    const lists = useStore(toolStore, state => state.lists);
    return lists[era]?.tools.length;
  },
  finds: words => (toolStore.get().lists[app.get().era]?.tools ?? []).filter(tool => tool.definition.name.includes(words))
    .map(tool => ({ title: tool.definition.name, hint: "tool", icon: "tool", mono: true, run: () => go("tools", tool.definition.name) })),
  start() {
    let loaded = "";
    app.subscribe(({ era, connections }) => {
      const key = era + (connections[era]?.state === "open" ? connections[era].at : "");
      if (connections[era]?.state === "open" && key !== loaded) { loaded = key; load(era); }
    });
    on("changed", ({ era, kind }) => { if (kind === "tools") load(era); });
  },
};
