// Resources: find one, fill in a template, read it, watch it change.
import { html, useEffect, useState } from "../vendor/preact.js";
import { bytes, clock, decodedSize, duration, plural } from "../format.js";
import { useKeys } from "../keys.js";
import { ask, on } from "../socket.js";
import { app, createStore, go, toast, useStore } from "../store.js";
import { Block, Part, Structured } from "../parts/content.js";
import { Button, Chip, Copy, Switch } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { isScalar, own, parsed } from "../parts/parsing.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Suggesting } from "../parts/suggesting.js";
import { ItemPane, firstLine, fitting, group, listed, useItems } from "./listed.js";

const { store, load, start } = listed("resources.list", "resources");
const MOST_READ = 20;
// "era uri" → { contents, error, ms, at, busy, stale }: the last ones read. `fields`: template → what was typed.
const reads = createStore({ read: {}, fields: {} });
const idOf = item => item.uri ?? item.definition.uriTemplate;
const about = item => item.definition ?? item;

const put = (key, change) =>
  reads.set(({ read }) => {
    const { [key]: before, ...rest } = read;
    return {
      read: { ...Object.fromEntries(Object.entries(rest).slice(1 - MOST_READ)), [key]: { ...before, ...change } },
    };
  });

function read(era, uri) {
  const key = `${era} ${uri}`,
    began = performance.now();
  if (!uri || reads.get().read[key]?.busy) return;
  put(key, { busy: true });
  const done = change =>
    put(key, { busy: false, ms: performance.now() - began, at: Date.now() / 1000, stale: false, ...change });
  ask("resources.read", { era, uri }).then(
    ({ contents }) => done({ contents, error: null }),
    error => done({ error, contents: null }),
  );
}

function updated({ era, uri }) {
  const key = `${era} ${uri}`,
    { route } = app.get();
  const times = (reads.get().read[key]?.times ?? 0) + 1;
  if (reads.get().read[key] || route.rest === uri) put(key, { stale: true, times, changed: Date.now() / 1000 });
  if (route.panel === "resources" && route.rest === uri) read(era, uri);
  else toast(`${uri} changed`);
}

async function watch(era, uri, on) {
  const { watched } = await ask("resources.watch", { era, uri, on });
  store.set(state => ({ lists: { ...state.lists, [era]: { ...state.lists[era], watched } } }));
}

function Content({ content }) {
  const { uri, mimeType, text, blob } = content ?? {};
  const value = text !== undefined && /json/.test(mimeType ?? "") ? parsed(text) : undefined;
  if (!isScalar(value)) return html`<${Structured} value=${value} title=${`JSON, ${bytes(new Blob([text]).size)}`} />`;
  if (value !== undefined) return html`<${Part} title="JSON" about=${mimeType}><${Json} value=${value} copy /><//>`;
  if (text !== undefined) return html`<${Block} block=${{ type: "text", text }} />`;
  return html`<${Block} block=${{ type: "resource", resource: { uri: String(uri ?? ""), mimeType, blob } }} />`;
}

function Contents({ state, uri, onRead }) {
  if (!state || (state.busy && !state.at)) return state?.busy ? html`<${Loading} rows=${4} />` : null;
  if (state.error) return html`<${ErrorNote} error=${state.error} fact="It could not be read." onRetry=${onRead} />`;
  const size = (state.contents ?? []).reduce(
    (sum, { text, blob }) =>
      sum + (blob !== undefined ? decodedSize(String(blob)) : new Blob([String(text ?? "")]).size),
    0,
  );
  return html`<p class="tiny dim num" role="status">
      ${[
        plural(state.contents.length, "part"),
        bytes(size),
        `read at ${clock(state.at, false)} in ${duration(state.ms)}`,
        state.times && `changed ${plural(state.times, "time")}, last at ${clock(state.changed, false)}`,
      ]
        .filter(Boolean)
        .join(", ")}
    </p>
    ${state.contents.length === 0 && html`<p class="dim">It is empty.</p>`}
    ${state.contents.map(
      (content, at) =>
        html`<div key=${at} class="stream">
          ${
            state.contents.length > 1 &&
            content?.uri !== uri &&
            html`<p class="mono small dim wraps">${content?.uri}</p>`
          }<${Content} key=${state.at} content=${content} />
        </div>`,
    )}`;
}

// The fields of a template. The URI that they make is shown before it is read.
function Template({ item, era, completes, onUri }) {
  const template = idOf(item);
  const values =
    own(
      useStore(reads, state => state.fields),
      template,
    ) ?? {};
  const [made, setMade] = useState({ uri: "", error: null });
  const set = change => reads.set(state => ({ fields: { ...state.fields, [template]: { ...values, ...change } } }));
  const known = item.variables;
  const key = JSON.stringify([template, values]);
  useEffect(() => {
    if (!known) {
      setMade({ uri: values[""] ?? "", error: null });
      return undefined;
    }
    let current = true;
    const sent = Object.fromEntries(
      known.map(({ name, many }) => [
        name,
        many
          ? (own(values, name) ?? "")
              .split(",")
              .map(each => each.trim())
              .filter(Boolean)
          : (own(values, name) ?? ""),
      ]),
    );
    const timer = setTimeout(
      () =>
        ask("resources.expand", { template, values: sent }).then(
          ({ uri }) => {
            if (current) setMade({ uri, error: null });
          },
          error => {
            if (current) setMade({ uri: "", error });
          },
        ),
      60,
    );
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key]);
  useEffect(() => onUri(made.uri), [made.uri]);
  const suggest = name =>
    completes &&
    (text =>
      ask("complete", {
        era,
        ref: { type: "ref/resource", uri: template },
        argument: name,
        value: text,
        context: values,
      }).then(({ values: found }) => found));
  const submit = () => read(era, made.uri);
  return html`<div class="form">
      ${(known ?? [{ name: "" }]).map(
        ({ name, many }) =>
          html`<div class="field" key=${name}>
            <div class="lab">
              <label for=${`var-${name}`}><b>${name || "URI"}</b></label
              ><span class="t">${many ? "texts, with commas between" : "text"}</span>
            </div>
            <${Suggesting}
              id=${`var-${name}`}
              value=${own(values, name) ?? ""}
              onChange=${text => set({ [name]: text })}
              suggest=${name && suggest(name)}
              placeholder=${name ? "" : template}
              onEnter=${submit}
            />
          </div>`,
      )}
    </div>
    ${made.error && html`<${ErrorNote} error=${made.error} />`}`;
}

function Detail({ item, uri, era, list, onBack }) {
  const isTemplate = !!item?.definition;
  const [made, setMade] = useState("");
  const [trouble, setTrouble] = useState(null);
  const target = isTemplate ? made : uri;
  const state = useStore(reads, each => each.read)[`${era} ${target}`];
  const onRead = () => read(era, target);
  useKeys({ "ctrl+enter": onRead, r: onRead });
  // A resource opens on its contents; a template waits for its values.
  useEffect(() => {
    setTrouble(null);
    if (!isTemplate && uri && !state && list) onRead();
  }, [uri, era, !!list]);
  const watched = list?.watched.includes(target);
  const onWatch = next => {
    setTrouble(null);
    watch(era, target, next).catch(setTrouble);
  };
  const { description, title, name, mimeType, size, annotations = {} } = about(item ?? {});
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="grow cut toolname">${title ?? name ?? uri}</h2>
      ${mimeType && html`<${Chip} tone="out">${mimeType}<//>`}${
        size != null && html`<${Chip} tone="out" class="num">${bytes(size)}<//>`
      }
    </div>
    <div class="body stream">
      ${description && html`<p class="about">${description}</p>`}
      ${
        (annotations.audience || annotations.priority != null || annotations.lastModified) &&
        html`<div class="facts">
          ${(annotations.audience ?? []).map(who => html`<${Chip} tone="out" key=${who}>for ${who}<//>`)}${
            annotations.priority != null && html`<${Chip} tone="out">priority ${annotations.priority}<//>`
          }${annotations.lastModified && html`<${Chip} tone="out">changed ${annotations.lastModified}<//>`}
        </div>`
      }
      ${
        isTemplate &&
        html`<p class="mono small dim wraps">${idOf(item)}</p>
          <${Template} key=${idOf(item)} item=${item} era=${era} completes=${list?.completes} onUri=${setMade} />`
      }
      <div class="uriline">
        <code class="mono grow">${target || " "}</code
        >${target && html`<${Copy} text=${target} label="Copy the URI" />`}
      </div>
      ${trouble && html`<${ErrorNote} error=${trouble} fact="It cannot be watched." />`}
      <${Contents} state=${state} uri=${target} onRead=${onRead} />
    </div>
    <div class="bar">
      <${Button}
        primary
        icon=${state ? "repeat" : "play"}
        busy=${state?.busy}
        keys="Ctrl ↵"
        onClick=${onRead}
        reason=${target ? null : "Fill in the template first."}
        >${state?.at ? "Read again" : "Read"}<//
      >
      <span class="grow"></span>${
        list?.watches
          ? html`<span class="row"
              ><${Switch} label="Watch for changes" on=${watched} onChange=${onWatch} disabled=${!target} /><span
                class="small"
                >Watch</span
              ></span
            >`
          : html`<span class="tiny faint">${list?.offered ? "This server tells no changes." : ""}</span>`
      }
    </div>`;
}

function Panel() {
  const items = useItems(store, "resources", {
    itemsOf: list => [...list.resources, ...list.templates],
    textsOf: each => [idOf(each), about(each).name, about(each).title, about(each).description],
    keyOf: idOf,
  });
  const { era, chosen: rest, list, item, view, setView } = items;
  const row = each =>
    html`<${Icon}
        name=${each.definition ? "filter" : /^image\//.test(each.mimeType ?? "") ? "window" : "file"}
        s
      /><span class="nm cut">${idOf(each)}</span
      >${list.watched.includes(idOf(each)) ? html`<${Chip} tone="acc">watched<//>` : html`<span></span>`}<span
        class="d cut"
        >${firstLine(about(each).description) || about(each).title || about(each).name}</span
      >`;
  return html`<${Panes} id="resources" class="p-resources" title="Resources" show=${`show-${view}`}>
    <${ItemPane}
      items=${items}
      noun="resource"
      icon="file"
      load=${load}
      row=${row}
      groups=${found => [
        group(
          "resources",
          "Resources",
          found.filter(each => !each.definition),
        ),
        group(
          "templates",
          "Templates",
          found.filter(each => each.definition),
        ),
      ]}
      without=${{ go: "tools", to: "Tools", text: "This server offers no resources in this era." }}
    />
    <${Pane} label=${rest || "Resource"} class="t-form"
      >${
        rest
          ? html`<${Detail}
              key=${`${era} ${rest}`}
              item=${item}
              uri=${rest}
              era=${era}
              list=${list}
              onBack=${() => setView("list")}
            />`
          : html`<div class="body">
              <${Empty} icon="file" title="No resource is chosen">Choose one on the left.<//>
            </div>`
      }<//
    ><//
  >`;
}

export const resources = {
  Panel,
  start: () => {
    start();
    on("updated", updated);
  },
  keys: [["Ctrl Enter, R", "read"]],
  count: () => {
    const era = useStore(app, state => state.era),
      list = useStore(store, state => state.lists)[era];
    return list && list.resources.length + list.templates.length;
  },
  finds: words =>
    fitting(
      [...(store.get().lists[app.get().era]?.resources ?? []), ...(store.get().lists[app.get().era]?.templates ?? [])],
      words,
      item => [idOf(item), about(item).title],
    ).map(item => ({
      title: idOf(item),
      hint: "resource",
      icon: "file",
      mono: true,
      run: () => go("resources", idOf(item)),
    })),
};
