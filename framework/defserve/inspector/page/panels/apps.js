// Apps: tools whose results are shown as a view, the view in a frame of its own, and its messages.
import { html, useMemo } from "../vendor/preact.js";
import { app, go, useStore } from "../store.js";
import { cut } from "../format.js";
import { Button, Chip, Copy } from "../parts/controls.js";
import { Form } from "../parts/form/form.js";
import { problems } from "../parts/form/schema.js";
import { Icon } from "../parts/icons.js";
import { Empty } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Stage } from "./apps/stage.js";
import { close, show, startReloading, store as stage } from "./apps/state.js";
import { ItemPane, fitting, group, listed, useItems } from "./listed.js";
import { setValue, startOf, store as tools, valueOf } from "./tools/state.js";

const { store, load, start } = listed("apps.list", "tools");
const idOf = item => (item.name && item.audience ? item.name : item.uri);
const isTool = item => !!item?.audience;
const opens = item => isTool(item) && item.uri && item.audience.includes("model");
const every = list => [...list.tools, ...list.views];

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
  const touched = Object.hasOwn(state.values, item.name);
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
  const onShow = ({ item, setView }) => {
    if (!opens(item)) return false;
    show(item.name, valueOf(tools.get(), item));
    setView("res");
    return true;
  };
  const items = useItems(store, "apps", {
    itemsOf: every,
    textsOf: each => [each.name, each.uri, each.title, each.description],
    keyOf: idOf,
    first: all => all.find(opens) ?? all[0],
    keys: panel => ({
      "ctrl+enter": () => onShow(panel),
      escape: () => {
        if (stage.get().open?.state !== "calling") return false;
        close();
        return true;
      },
    }),
  });
  const { chosen: rest, list, item, view, setView } = items;
  const row = each =>
    html`<${Icon} name=${isTool(each) ? (opens(each) ? "window" : "tool") : "file"} s /><span class="nm cut"
        >${idOf(each)}</span
      ><span></span
      ><span class="d cut">${(each.description || each.title || each.uri || "").trim().split("\n")[0]}</span>`;
  const back = () => setView("list");
  return html`<${Panes} id="apps" class="p-apps" title="Apps" show=${`show-${view}`}>
    <${ItemPane}
      items=${items}
      noun="app"
      icon="window"
      load=${load}
      focus=".body :is(input, textarea, select, button)"
      row=${row}
      groups=${found => [
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
      without=${{ go: "tools", to: "Tools", text: "No tool of this server has a view in this era." }} />
    <${Pane} label=${rest || "App"} class="t-form"
      >${
        !item
          ? html`<div class="head only-m"><${Button} plain icon="left" label="Back to the list" onClick=${back} /></div>
              <div class="body">
                <${Empty} icon="window" title=${rest && list ? `There is no app ${rest} here` : "No app is chosen"}
                  >${rest ? "It may be in the other era." : "Choose one on the left."}<//
                >
              </div>`
          : opens(item)
            ? html`<${AppForm} item=${item} onShow=${() => onShow(items)} onBack=${back} />`
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
