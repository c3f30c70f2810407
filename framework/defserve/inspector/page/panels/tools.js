// Tools: find one, call it, read what it gives.
import { html, useEffect, useState } from "../vendor/preact.js";
import { useKeys } from "../keys.js";
import { app, go, toast, useStore } from "../store.js";
import { Button, Chip, Tabs, copyText } from "../parts/controls.js";
import { Mark } from "../parts/icons.js";
import { Panes } from "../parts/panes.js";
import { cut, number } from "../format.js";
import { find } from "./tools/finding.js";
import { ToolForm } from "./tools/form.js";
import { ToolList } from "./tools/list.js";
import { CallMark, ToolResult, spoken } from "./tools/result.js";
import { call, callInView, cancel, running, start, store, valueOf } from "./tools/state.js";

const MOST_CALLS_FOUND = 5;

// Makes a call of before again, and shows it.
function repeat(n, tool) {
  const before = store.get().calls.find(each => each.n === n);
  go("tools", tool);
  if (before) call(tool, before.arguments);
}

const wide = () => innerWidth >= 720;

function Panel() {
  const era = useStore(app, state => state.era);
  const name = useStore(app, state => state.route.rest);
  const state = useStore(store);
  const [tab, setTab] = useState("form");
  // On a phone, one of list, form and res. Until somebody chooses, a tool that was called shows what it gave.
  const [chosen, setView] = useState(null);
  const view = chosen ?? (!name ? "list" : callInView(state, name) ? "res" : "form");
  const tools = state.lists[era]?.tools;
  const tool = tools?.find(each => each.name === name);
  // A panel opens on data: without a choice, the first tool is shown.
  useEffect(() => {
    if (!name && !location.hash.includes("/") && tools?.length && wide()) go("tools", tools[0].name);
  }, [name, tools]);
  const onCall = () => {
    if (!tool || app.get().target.saved) return;
    // Other arguments than those in view would be sent.
    const unfinished = document.querySelector(".t-form .rawbox [aria-invalid=true]");
    if (unfinished) {
      unfinished.focus();
      return;
    }
    call(name, valueOf(store.get(), tool));
    setView("res");
  };
  const again = () => {
    const last = callInView(store.get(), name);
    if (!last || app.get().target.saved) return false;
    call(last.tool, last.arguments);
    setView("res");
    return true;
  };
  useKeys({
    "ctrl+enter": onCall,
    c: () => {
      if (!tool) return false;
      copyText(JSON.stringify(tool.definition, null, 2)).then(done => {
        if (done) toast("The definition is copied");
      });
      return true;
    },
    r: again,
    escape: () => {
      const now = running(store.get());
      if (!now) return false;
      cancel(now);
      return true;
    },
  });
  // Opening a row leads on to its first field, as soon as its form is there.
  const [opened, setOpened] = useState(null);
  const open = key => {
    setView("form");
    if (wide()) setOpened(key);
  };
  useEffect(() => {
    if (!opened || opened !== tool?.name) return;
    setOpened(null);
    document.querySelector(".t-form .body :is(input, textarea, select, button)")?.focus();
  }, [opened, tool]);
  const choose = next => {
    if (next === "result") setView("res");
    else {
      setView("form");
      setTab(next);
    }
  };
  const latest = callInView(state, name);
  const resultTab = html`Result ${latest && html`<${CallMark} call=${latest} />`}`;
  const head = html`<div class="head only-m">
      <${Button} plain icon="left" label="Back to the list" onClick=${() => setView("list")} />
      <h2 class="mono grow cut toolname">${name}</h2>
      ${
        tool &&
        html`<${Mark} risk=${tool.mark} word /><${Chip} tone="out" class="num">${number(tool.tokens)} tokens<//>`
      }
    </div>
    <${Tabs}
      label="Tool"
      class="only-m"
      value="result"
      onChange=${choose}
      tabs=${[
        ["form", "Form"],
        ["json", "JSON"],
        ["definition", "Definition"],
        ["result", resultTab],
      ]}
    />`;
  return html`<${Panes} id="tools" class="p-tools" title="Tools" show=${`show-${view}`}>
    <${ToolList} tools=${tools} era=${era} selected=${name} onOpen=${open} />
    <${ToolForm}
      tool=${tool}
      name=${name}
      tab=${tab}
      setTab=${choose}
      onCall=${onCall}
      onBack=${() => setView("list")}
      resultTab=${resultTab} />
    <${ToolResult} tool=${tool} name=${name} onRepeat=${again} head=${head}
  /><//>`;
}

export const tools = {
  id: "tools",
  title: "Tools",
  group: "Server",
  icon: "tool",
  key: "t",
  Panel,
  start,
  keys: [
    ["Ctrl Enter", "call"],
    ["Esc", "cancel the call"],
    ["R", "repeat the call in view"],
    ["C", "copy the definition as JSON"],
  ],
  count: () => {
    const era = useStore(app, state => state.era);
    return useStore(store, state => state.lists)[era]?.tools.length;
  },
  finds: words => [
    ...find(store.get().lists[app.get().era]?.tools ?? [], words).map(tool => ({
      title: tool.name,
      hint: "tool",
      icon: "tool",
      mono: true,
      run: () => go("tools", tool.name),
    })),
    ...store
      .get()
      .calls.map(each => ({ ...each, title: `${each.tool} ${spoken(each.arguments)}` }))
      .filter(each => words && each.title.toLowerCase().includes(words.toLowerCase()))
      .slice(0, MOST_CALLS_FOUND)
      .map(({ n, tool, title }) => ({
        title: cut(title, 80),
        hint: "call again",
        icon: "repeat",
        mono: true,
        run: () => repeat(n, tool),
      })),
  ],
};
