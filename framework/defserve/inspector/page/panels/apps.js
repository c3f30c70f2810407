// Apps: tools whose results are shown as a view, the view in a frame of its own, and its messages.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { useKeys } from "../keys.js";
import { app, go, useStore } from "../store.js";
import { cut, plural } from "../format.js";
import { Button, Chip, Copy, Search } from "../parts/controls.js";
import { Form } from "../parts/form/form.js";
import { problems } from "../parts/form/schema.js";
import { Icon } from "../parts/icons.js";
import { List, enters } from "../parts/lists.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Stage } from "./apps/stage.js";
import { close, show, startReloading, store as stage } from "./apps/state.js";
import { fitting, listed } from "./listed.js";
import { setValue, startOf, store as tools, valueOf } from "./tools/state.js";

const { store, load, start } = listed("apps.list", "tools");
const wide = () => innerWidth >= 720;
const idOf = item => (item.name && item.audience ? item.name : item.uri);
const isTool = item => !!item?.audience;
const opens = item => isTool(item) && item.uri && item.audience.includes("model");
const every = list => (list ? [...list.tools, ...list.views] : []);
const group = (key, label, items) => ({
  key,
  label,
  items,
  head:
    items.length > 0 &&
    html`<div class="group"><span class="grow">${label}</span><span class="num">${items.length}</span></div>`,
});

// A tool that only views call, or a view: what it is, and where it leads.
function About({ item, list, onBack }) {
  const used = isTool(item) ? [] : list.tools.filter(each => each.uri === item.uri);
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="grow cut toolname mono">${idOf(item)}</h2>
      ${!isTool(item) && html`<${Copy} text=${item.uri} label="Copy the URI" />`}
    </div>
    <div class="body stream">
      ${item.description && html`<p class="about">${item.description}</p>`}
      ${
        isTool(item)
          ? html`<p>Views of this server call it. A model does not see it.</p>
              <p><${Button} small icon="tool" onClick=${() => go("tools", item.name)}>Open it in Tools<//></p>`
          : html`<p>
                ${
                  used.length
                    ? html`It shows the results of${" "}
                      ${used.map(
                        (each, at) =>
                          html`${at ? ", " : ""}<a class="link mono" href=${`#apps/${encodeURIComponent(each.name)}`}
                              >${each.name}</a
                            >`,
                      )}.`
                    : "No tool that is listed has this view."
                }
              </p>
              <p class="dim">${item.mimeType}</p>
              <p>
                <${Button} small icon="file" onClick=${() => go("resources", item.uri)}>Read its source in Resources<//>
              </p>`
      }
    </div>`;
}

function AppForm({ item, onShow, onBack }) {
  const state = useStore(tools),
    schema = item.schema;
  const value = valueOf(state, item);
  const found = useMemo(() => problems(value, { type: "object", ...schema }, schema), [item, value]);
  const touched = item.name in state.values;
  const wrong = Object.fromEntries(
    [...found]
      .reverse()
      .filter(({ reason }) => touched || reason !== "missing")
      .map(({ path, reason }) => [path, reason]),
  );
  const busy = useStore(stage, each => each.open)?.state === "calling";
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="mono grow cut toolname">${item.name}</h2>
      ${item.audience.map(who => html`<${Chip} tone="out" key=${who}>for ${who === "app" ? "views" : "the model"}<//>`)}
    </div>
    <div class="intro">
      ${item.description && html`<div class="about">${cut(item.description.trim(), 2000)}</div>`}
      <p class="mono small dim wraps">${item.uri}</p>
    </div>
    <div class="body">
      <${Form}
        key=${item.name}
        schema=${schema}
        value=${value}
        onChange=${next => setValue(item.name, next)}
        wrong=${wrong}
        id="app"
      />
    </div>
    <div class="bar">
      <${Button} primary icon="window" busy=${busy} keys="Ctrl ↵" onClick=${onShow}
        >${touched && found.length ? "Show anyway" : "Show"}<//
      ><${Button} class="no-m" onClick=${() => setValue(item.name, startOf(item))}>Reset<//>
    </div>`;
}

function Panel() {
  const era = useStore(app, state => state.era),
    rest = useStore(app, state => state.route.rest);
  const { lists, errors } = useStore(store);
  const [words, setWords] = useState("");
  const [view, setView] = useState(rest ? "form" : "list");
  const search = useRef(null),
    element = useRef(null);
  const list = lists[era],
    error = errors[era],
    all = every(list);
  const found = fitting(all, words, item => [item.name, item.uri, item.title, item.description]);
  const item = all.find(each => idOf(each) === rest);
  useEffect(() => {
    if (!rest && !location.hash.includes("/") && all.length && wide()) go("apps", idOf(all.find(opens) ?? all[0]));
  }, [rest, all.length]);
  const onShow = () => {
    if (!opens(item)) return false;
    show(item.name, valueOf(tools.get(), item));
    setView("res");
    return true;
  };
  useKeys({
    "/": () => {
      search.current.focus();
      search.current.select();
    },
    "ctrl+enter": onShow,
    escape: () => {
      if (stage.get().open?.state !== "calling") return false;
      close();
      return true;
    },
  });
  const select = id => go("apps", id);
  const down = event => {
    if (enters(event) && found.length) {
      event.preventDefault();
      select(idOf(found[0]));
      element.current?.focus();
    }
  };
  const open = () => {
    setView("form");
    if (wide()) setTimeout(() => document.querySelector(".t-form .body :is(input, textarea, select, button)")?.focus());
  };
  const row = each =>
    html`<${Icon} name=${isTool(each) ? (opens(each) ? "window" : "tool") : "file"} s /><span class="nm cut"
        >${idOf(each)}</span
      ><span></span
      ><span class="d cut">${(each.description || each.title || each.uri || "").trim().split("\n")[0]}</span>`;
  const back = () => setView("list");
  return html`<${Panes} id="apps" class="p-apps" title="Apps" show=${`show-${view}`}>
    <${Pane} label="Apps" class="t-list"
      ><div class="head">
        <${Search}
          value=${words}
          onInput=${setWords}
          placeholder=${`Search ${plural(all.length, "app")}`}
          inputRef=${search}
          onKeyDown=${down}
        />
      </div>
      ${
        error &&
        html`<div class="pad">
          <${ErrorNote} error=${error} fact="The apps could not be listed." onRetry=${() => load(era)} />
        </div>`
      }
      ${
        !list
          ? error
            ? html`<div class="grow"></div>`
            : html`<${Loading} rows=${4} />`
          : found.length
            ? html`<${List}
                label="Apps"
                id="app"
                listRef=${element}
                keyOf=${idOf}
                selected=${rest}
                rowClass="tool q"
                onSelect=${select}
                onOpen=${open}
                row=${row}
                groups=${[
                  group("apps", "Tools with a view", found.filter(opens)),
                  group(
                    "helpers",
                    "Tools for views",
                    found.filter(each => isTool(each) && !opens(each)),
                  ),
                  group(
                    "views",
                    "Views",
                    found.filter(each => !isTool(each)),
                  ),
                ]}
              />`
            : html`<div class="body">
                ${
                  words
                    ? html`<${Empty}
                        icon="search"
                        title=${`No app fits “${words}”`}
                        action=${html`<${Button} small keys="Esc" onClick=${() => setWords("")}>Clear the search<//>`}
                      />`
                    : html`<${Empty}
                        icon="window"
                        title="No apps"
                        action=${html`<${Button} small onClick=${() => go("tools")}>Go to Tools<//>`}
                        >No tool of this server has a view in this era.<//
                      >`
                }
              </div>`
      }<//
    >
    <${Pane} label=${rest || "App"} class="t-form"
      >${
        !item
          ? html`<div class="head only-m"><${Button} plain icon="left" label="Back to the list" onClick=${back} /></div>
              <div class="body">
                <${Empty} icon="window" title=${rest && list ? `There is no app ${rest} here` : "No app is chosen"}
                  >${rest ? "It may be in the other era." : "Choose one at the left."}<//
                >
              </div>`
          : opens(item)
            ? html`<${AppForm} item=${item} onShow=${onShow} onBack=${back} />`
            : html`<${About} item=${item} list=${list} onBack=${back} />`
      }<//
    >
    <${Stage}
      head=${html`<div class="head only-m">
        <${Button} plain icon="left" label="Back to the form" onClick=${() => setView("form")} />
        <h2 class="mono grow cut toolname">${rest}</h2>
      </div>`}
  /><//>`;
}

export const apps = {
  Panel,
  start: () => {
    start();
    startReloading();
  },
  keys: [
    ["Ctrl Enter", "show the app"],
    ["Esc", "cancel the call"],
  ],
  count: () => {
    const era = useStore(app, state => state.era),
      list = useStore(store, state => state.lists)[era];
    return list?.tools.filter(opens).length;
  },
  finds: words =>
    fitting((store.get().lists[app.get().era]?.tools ?? []).filter(opens), words, item => [
      item.name,
      item.title,
      item.uri,
    ]).map(item => ({ title: item.name, hint: "app", icon: "window", mono: true, run: () => go("apps", item.name) })),
};
