// Prompts: fill in the arguments, read the messages that a model would get.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { duration, plural } from "../format.js";
import { useKeys } from "../keys.js";
import { ask } from "../socket.js";
import { app, createStore, go, useStore } from "../store.js";
import { Button, Chip, Copy, Search } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { List, enters } from "../parts/lists.js";
import { Messages } from "../parts/messages.js";
import { Empty, ErrorNote, Loading } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Suggesting } from "../parts/suggesting.js";
import { fitting, listed } from "./listed.js";

const { store, load, start } = listed("prompts.list", "prompts");
// `values`: prompt → arguments as typed. `got`: "era prompt" → { result, error, ms, at, busy }.
const typed = createStore({ values: {}, got: {} });
const wide = () => innerWidth >= 720;
const firstLine = text =>
  String(text ?? "")
    .trim()
    .split("\n")[0];
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
    values = all[name] ?? {};
  const state = useStore(typed, each => each.got)[`${era} ${name}`];
  const set = change => typed.set(each => ({ values: { ...each.values, [name]: { ...values, ...change } } }));
  const missing = asked.filter(each => each.required && !values[each.name]);
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
                value=${values[each.name] ?? ""}
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
  const era = useStore(app, state => state.era),
    name = useStore(app, state => state.route.rest);
  const { lists, errors } = useStore(store);
  const got = useStore(typed, state => state.got);
  const [words, setWords] = useState("");
  const [view, setView] = useState(name ? "form" : "list");
  const search = useRef(null),
    element = useRef(null);
  const list = lists[era],
    error = errors[era],
    all = list?.prompts ?? [];
  const found = fitting(all, words, each => [each.name, each.title, each.description]);
  const prompt = all.find(each => each.name === name);
  useEffect(() => {
    if (!name && !location.hash.includes("/") && all.length && wide()) go("prompts", all[0].name);
  }, [name, all.length]);
  const onGet = () => {
    if (prompt) {
      get(era, name, typed.get().values[name] ?? {});
      setView("res");
    }
  };
  useKeys({
    "/": () => {
      search.current.focus();
      search.current.select();
    },
    "ctrl+enter": onGet,
    r: onGet,
  });
  const open = () => {
    setView("form");
    if (wide())
      requestAnimationFrame(() => document.querySelector(".t-form .body input, .t-form .bar button")?.focus());
  };
  const down = event => {
    if (enters(event) && found.length) {
      event.preventDefault();
      go("prompts", found[0].name);
      element.current?.focus();
    }
  };
  return html`<${Panes} id="prompts" class="p-prompts" title="Prompts" show=${`show-${view}`}>
    <${Pane} label="Prompts" class="t-list"
      ><div class="head">
        <${Search}
          value=${words}
          onInput=${setWords}
          placeholder=${`Search ${plural(all.length, "prompt")}`}
          inputRef=${search}
          onKeyDown=${down}
        />
      </div>
      ${
        error &&
        html`<div class="pad">
          <${ErrorNote} error=${error} fact="The prompts could not be listed." onRetry=${() => load(era)} />
        </div>`
      }
      ${
        !list
          ? error
            ? html`<div class="grow"></div>`
            : html`<${Loading} rows=${4} />`
          : found.length
            ? html`<${List}
                label="Prompts"
                id="prompt"
                listRef=${element}
                keyOf=${each => each.name}
                selected=${name}
                rowClass="tool q"
                onSelect=${each => go("prompts", each)}
                onOpen=${open}
                groups=${[{ key: "prompts", label: "Prompts", items: found }]}
                row=${each =>
                  html`<${Icon} name="chat" s /><span class="nm cut">${each.name}</span
                    ><span class="tok">${each.arguments?.length || ""}</span
                    ><span class="d cut">${firstLine(each.description) || each.title}</span>`}
              />`
            : html`<div class="body">
                ${
                  words
                    ? html`<${Empty}
                        icon="search"
                        title=${`No prompt fits “${words}”`}
                        action=${html`<${Button} small keys="Esc" onClick=${() => setWords("")}>Clear the search<//>`}
                      />`
                    : html`<${Empty}
                        icon="chat"
                        title="No prompts"
                        action=${html`<${Button} small onClick=${() => go("tools")}>Go to Tools<//>`}
                        >${
                          list.offered
                            ? "This server lists no prompts in this era."
                            : "This server offers no prompts in this era."
                        }<//
                      >`
                }
              </div>`
      }<//
    >
    <${Pane} label=${name || "Prompt"} class="t-form"
      >${
        prompt
          ? html`<${PromptForm}
              key=${`${era} ${name}`}
              prompt=${prompt}
              era=${era}
              completes=${list.completes}
              onGet=${onGet}
              onBack=${() => setView("list")}
            />`
          : html`<div class="head only-m">
                <${Button} plain icon="left" label="Back to the list" onClick=${() => setView("list")} />
              </div>
              <div class="body">
                ${
                  list &&
                  html`<${Empty} icon="chat" title=${name ? `There is no prompt ${name} here` : "No prompt is chosen"}
                    >${name ? "It may be in the other era." : "Choose one at the left."}<//
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
