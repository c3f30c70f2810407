// Prompts: fill in the arguments, read the messages that a model would get.
import { html, useState } from "../vendor/preact.js";
import { duration, plural } from "../format.js";
import { ask } from "../socket.js";
import { app, createStore, go, useStore } from "../store.js";
import { Button, Chip, Copy } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { Messages } from "../parts/messages.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { own } from "../parts/parsing.js";
import { Suggesting } from "../parts/suggesting.js";
import { ItemPane, firstLine, fitting, listed, useItems } from "./listed.js";

const { store, load, start } = listed("prompts.list", "prompts");
// `values`: prompt → arguments as typed. `got`: "era prompt" → { result, error, ms, at, busy }.
const typed = createStore({ values: {}, got: {} });
const given = values => Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));

function get(era, prompt, values) {
  const key = `${era} ${prompt}`,
    began = performance.now();
  const put = change => typed.set(({ got }) => ({ got: { ...got, [key]: { ...got[key], ...change } } }));
  if (typed.get().got[key]?.busy) return;
  put({ busy: true });
  const done = change => put({ busy: false, ms: performance.now() - began, at: Date.now() / 1000, ...change });
  ask("prompts.get", { era, prompt, arguments: given(values) }).then(
    result => done({ result, error: null }),
    error => done({ error, result: null }),
  );
}

function PromptForm({ prompt, era, completes, onGet, onBack }) {
  const { name, title, description, arguments: asked = [] } = prompt;
  const all = useStore(typed, state => state.values),
    values = own(all, name) ?? {};
  const state = useStore(typed, each => each.got)[`${era} ${name}`];
  const set = change => typed.set(each => ({ values: { ...each.values, [name]: { ...values, ...change } } }));
  const missing = asked.filter(each => each.required && !own(values, each.name));
  const suggest = argument =>
    completes &&
    (text =>
      ask("complete", {
        era,
        ref: { type: "ref/prompt", name },
        argument,
        value: text,
        context: given({ ...values, [argument]: "" }),
      }).then(({ values: found }) => found));
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="mono grow cut toolname">${name}</h2>
      ${title && html`<${Chip} tone="out">${title}<//>`}
    </div>
    <div class="body stream">
      ${description && html`<p class="about">${description}</p>`}${
        asked.length === 0 && html`<p class="dim">It takes no arguments.</p>`
      }
      <div class="form">
        ${asked.map(
          each =>
            html`<div class="field" key=${each.name}>
              <div class="lab">
                <label for=${`arg-${each.name}`}><b>${each.name}</b></label
                ><span class="t">text</span>${each.required && html`<span class="req">required</span>`}
              </div>
              <${Suggesting}
                id=${`arg-${each.name}`}
                value=${own(values, each.name) ?? ""}
                onChange=${text => set({ [each.name]: text })}
                suggest=${suggest(each.name)}
                onEnter=${onGet}
              />${each.description && html`<p class="help">${each.description}</p>`}
            </div>`,
        )}
      </div>
    </div>
    <div class="bar">
      <${Button} primary icon="play" busy=${state?.busy} keys="Ctrl ↵" onClick=${onGet}
        >${(name in all || state) && missing.length ? "Get anyway" : "Get"}<//
      ><${Button} onClick=${() => typed.set(({ values: { [name]: _, ...others } }) => ({ values: others }))}>Reset<//>
    </div>`;
}

function Got({ state, name, onBack, onGet }) {
  const [raw, setRaw] = useState(false);
  const messages = Array.isArray(state?.result?.messages) ? state.result.messages : [];
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the arguments" onClick=${onBack} />
      <h2 class="grow cut">Messages</h2>
      ${
        state?.at &&
        html`<span class="tiny dim num" role="status"
          >${state.error ? "failed" : plural(messages.length, "message")}, ${duration(state.ms)}</span
        >`
      }
      ${state?.result && html`<${Copy} text=${() => JSON.stringify(state.result, null, 2)} label="Copy as JSON" />`}
    </div>
    <div class="body">
      ${
        state?.error
          ? html`<${ErrorNote} error=${state.error} onRetry=${onGet} />`
          : state?.result
            ? html`<div class="stream">
                ${state.result.description && html`<p class="dim">${state.result.description}</p>`}<${Messages}
                  key=${state.at}
                  messages=${messages}
                />
                ${messages.length === 0 && html`<p class="dim">The prompt has no messages.</p>`}
                <div class="part">
                  <${Button}
                    small
                    plain
                    icon=${raw ? "down" : "right"}
                    aria-expanded=${String(raw)}
                    onClick=${() => setRaw(!raw)}
                    >Whole result<//
                  >${raw && html`<${Json} value=${state.result} copy label="Whole result" />`}
                </div>
              </div>`
            : state?.busy
              ? html`<${Loading} rows=${3} />`
              : html`<${Empty} icon="chat" title="No messages yet"
                  >What a model would read appears here when you get ${name}.<//
                >`
      }
    </div>`;
}

function Panel() {
  const got = useStore(typed, state => state.got);
  const onGet = ({ era, item, setView }) => {
    if (item) {
      get(era, item.name, own(typed.get().values, item.name) ?? {});
      setView("res");
    }
  };
  const items = useItems(store, "prompts", {
    itemsOf: list => list.prompts,
    textsOf: each => [each.name, each.title, each.description],
    keyOf: each => each.name,
    keys: panel => ({ "ctrl+enter": () => onGet(panel), r: () => onGet(panel) }),
  });
  const { era, chosen: name, list, item: prompt, view, setView } = items;
  return html`<${Panes} id="prompts" class="p-prompts" title="Prompts" show=${`show-${view}`}>
    <${ItemPane}
      items=${items}
      noun="prompt"
      icon="chat"
      load=${load}
      focus=":is(.body input, .bar button)"
      without=${{ go: "tools", to: "Tools", text: "This server offers no prompts in this era." }}
      row=${each =>
        html`<${Icon} name="chat" s /><span class="nm cut">${each.name}</span
          ><span class="tok">${each.arguments?.length || ""}</span
          ><span class="d cut">${firstLine(each.description) || each.title}</span>`} />
    <${Pane} label=${name || "Prompt"} class="t-form"
      >${
        prompt
          ? html`<${PromptForm}
              key=${`${era} ${name}`}
              prompt=${prompt}
              era=${era}
              completes=${list.completes}
              onGet=${() => onGet(items)}
              onBack=${() => setView("list")}
            />`
          : html`<div class="head only-m">
                <${Button} plain icon="left" label="Back to the list" onClick=${() => setView("list")} />
              </div>
              <div class="body">
                ${
                  list &&
                  html`<${Empty} icon="chat" title=${name ? `There is no prompt ${name} here` : "No prompt is chosen"}
                    >${name ? "It may be in the other era." : "Choose one on the left."}<//
                  >`
                }
              </div>`
      }<//
    >
    <${Pane} label="Messages" class="t-res"
      ><${Got}
        key=${`${era} ${name}`}
        state=${got[`${era} ${name}`]}
        name=${name || "the prompt"}
        onGet=${onGet}
        onBack=${() => setView("form")} /><//
  ><//>`;
}

export const prompts = {
  Panel,
  start,
  keys: [["Ctrl Enter, R", "get the messages"]],
  count: () => {
    const era = useStore(app, state => state.era);
    return useStore(store, state => state.lists)[era]?.prompts.length;
  },
  finds: words =>
    fitting(store.get().lists[app.get().era]?.prompts ?? [], words, each => [each.name, each.title]).map(each => ({
      title: each.name,
      hint: "prompt",
      icon: "chat",
      mono: true,
      run: () => go("prompts", each.name),
    })),
};
