// The left pane: search, filter by mark, groups by feature set, what each definition costs.
import { html, useRef, useState } from "../../vendor/preact.js";
import { number, plural } from "../../format.js";
import { useKeys } from "../../keys.js";
import { app, go, useStore } from "../../store.js";
import { Button, Search } from "../../parts/controls.js";
import { Mark } from "../../parts/icons.js";
import { List, enters } from "../../parts/lists.js";
import { Empty, ErrorNote, Loading } from "../../parts/notes.js";
import { Pane } from "../../parts/panes.js";
import { find, nearest } from "./finding.js";
import { load, store } from "./state.js";

const MARKS = ["safe", "moderate", "dangerous", "unmarked"];
const MOST_SHOWN = 400;
const markOf = tool => tool.mark ?? "unmarked";
const total = tools => tools.reduce((sum, tool) => sum + tool.tokens, 0);

function grouped(tools, colours) {
  const sets = [...new Set(tools.map(tool => tool.set ?? ""))];
  if (sets.length === 1 && sets[0] === "") return [{ key: "tools", label: "Tools", items: tools }];
  sets.sort((a, b) => (a === "") - (b === ""));
  return sets.map(set => {
    const items = tools.filter(tool => (tool.set ?? "") === set);
    return {
      key: set || "none",
      label: set || "No feature set",
      items,
      head: html`<div class="group">
        ${set && html`<span class=${`sq k${colours.get(set)}`}></span>`}<span class="grow cut"
          >${set || "No feature set"}</span
        ><span class="num">${number(total(items))}</span>
      </div>`,
    };
  });
}

// The part of a text that was searched for, marked.
function Marked({ text, words }) {
  const at = words ? text.toLowerCase().indexOf(words.toLowerCase()) : -1;
  return at < 0
    ? text
    : [text.slice(0, at), html`<mark>${text.slice(at, at + words.length)}</mark>`, text.slice(at + words.length)];
}

const firstLine = text => (text ?? "").trim().split("\n")[0];

export function ToolList({ tools, era, selected, onOpen }) {
  const [words, setWords] = useState("");
  const [mark, setMark] = useState("");
  const search = useRef(null),
    list = useRef(null);
  const error = useStore(store, state => state.errors)[era];
  const told = useStore(app, state => state.connections)[era];
  useKeys({
    "/": () => {
      search.current.focus();
      search.current.select();
    },
  });
  const all = tools ?? [];
  const colours = new Map(
    [...new Set(all.map(tool => tool.set).filter(Boolean))].map((set, at) => [set, (at % 6) + 1]),
  );
  const fitting = find(all, words).filter(tool => !mark || markOf(tool) === mark);
  const found = fitting.slice(0, MOST_SHOWN);
  const count = kind => all.filter(tool => markOf(tool) === kind).length;
  const near = words && !found.length ? nearest(all, words) : null;
  const select = name => go("tools", name);
  const down = event => {
    if (enters(event) && found.length) {
      event.preventDefault();
      const first = event.key === "Enter" || !found.some(tool => tool.name === selected);
      if (first) select(found[0].name);
      if (event.key === "Enter") onOpen(found[0].name);
      else list.current?.focus();
    }
  };
  return html`<${Pane} label="Tools" class="t-list"
    ><div class="head">
      <${Search}
        value=${words}
        onInput=${setWords}
        placeholder=${`Search ${plural(all.length, "tool")}`}
        inputRef=${search}
        onKeyDown=${down}
      />
    </div>
    ${
      all.length > 0 &&
      html`<div class="row filters" role="group" aria-label="Filter by mark">
        <button
          type="button"
          class=${`chip${mark ? "" : " acc"}`}
          aria-pressed=${String(!mark)}
          onClick=${() => setMark("")}
        >
          All ${all.length}
        </button>
        ${MARKS.filter(count).map(
          kind =>
            html`<button
              type="button"
              key=${kind}
              class=${`chip${mark === kind ? " acc" : ""}`}
              aria-pressed=${String(mark === kind)}
              title=${kind}
              onClick=${() => setMark(mark === kind ? "" : kind)}
            >
              <${Mark} risk=${kind === "unmarked" ? null : kind} />${count(kind)}
            </button>`,
        )}
        <span class="grow"></span><span class="tiny faint">tokens</span>
      </div>`
    }
    ${
      error &&
      html`<div class="pad">
        <${ErrorNote} error=${error} fact="The tools could not be listed." onRetry=${() => load(era)} />
      </div>`
    }
    ${
      !tools && !error
        ? told?.state === "open" || !told
          ? html`<${Loading} rows=${6} />`
          : html`<div class="grow"></div>`
        : found.length
          ? html`<${List}
              label="Tools"
              id="tool"
              listRef=${list}
              groups=${words ? [{ key: "found", label: "Found", items: found }] : grouped(found, colours)}
              keyOf=${tool => tool.name}
              selected=${selected}
              rowClass="tool"
              onSelect=${select}
              onOpen=${onOpen}
              row=${tool =>
                html`<${Mark} risk=${tool.mark} /><span class="nm cut"
                    ><${Marked} text=${tool.name} words=${words} /></span
                  ><span class="tok">${number(tool.tokens)}</span
                  ><span class="d cut">${firstLine(tool.about) || tool.title}</span>`}
            />`
          : html`<div class="body">
              ${
                words || mark
                  ? html`<${Empty}
                      icon="search"
                      title=${words ? `No tool fits “${words}”` : `No tool is ${mark}`}
                      action=${html`<${Button}
                        small
                        keys=${words ? "Esc" : null}
                        onClick=${() => {
                          setWords("");
                          setMark("");
                        }}
                        >Clear the search<//
                      >`}
                      >${
                        near &&
                        html`Did you mean${" "}
                          <button type="button" class="link" onClick=${() => setWords(near)}>${near}</button>?`
                      }<//
                    >`
                  : !error && html`<${Empty} icon="tool" title="No tools">This server lists no tools in this era.<//>`
              }
            </div>`
    }
    ${
      fitting.length > found.length &&
      html`<div class="bar tiny dim">${number(fitting.length - found.length)} more. Search to find them.</div>`
    }
    <div class="bar tiny dim">
      <span class="grow">${useSearched(era) ? "If a client reads them all" : "With every request"}</span
      ><b class="num">about ${number(total(all))} tokens</b>
    </div><//
  >`;
}

const useSearched = era => useStore(store, state => state.lists)[era]?.searched;
