// The filter: coloured while it is typed, with suggestions. What does not parse is marked and told.
import { html, useLayoutEffect, useRef, useState } from "../../vendor/preact.js";
import { Icon } from "../../parts/icons.js";
import { heldRows, setText, typed, wire } from "./model.js";
import { useStore } from "../../store.js";

const NAMES = [
  ["method:", "part of the method"],
  ["tool:", "part of the name of a called tool"],
  ["id:", "all messages of one request"],
  ["era:", "handshake or stateless"],
  ["dir:", "sent or received"],
  ["is:error", "failed or refused"],
  ["is:slow", "took 1 s or longer"],
  ["not:", "what does not fit"],
];
const VALUES = { "era:": ["handshake", "stateless"], "dir:": ["sent", "received"], "is:": ["error", "slow"] };
const MOST = 8;

const quoted = value => (/[\s"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);

// What could stand where the term at the caret is: [text, hint] pairs, and where that term begins.
function suggestions(text, caret) {
  const before = text.slice(0, caret),
    start = Math.max(before.lastIndexOf(" ") + 1, 0);
  const prefix = /^(not:)*/.exec(before.slice(start))[0],
    term = before.slice(start + prefix.length).toLowerCase();
  const name = /^[a-z]+:/.exec(term)?.[0];
  let found;
  if (!name) found = NAMES.filter(([each]) => each.startsWith(term) && !(prefix && each === "not:"));
  else {
    const seen =
      name === "method:"
        ? row => row.method
        : name === "tool:"
          ? row => row.method === "tools/call" && row.about
          : null;
    const all = VALUES[name] ?? (seen ? [...new Set([...heldRows()].map(seen).filter(Boolean))].sort() : []);
    found = all
      .filter(each => each.toLowerCase().includes(term.slice(name.length).replace(/^"/, "")))
      .map(each => [name + quoted(each), ""]);
  }
  return { start: start + prefix.length, found: found.filter(([each]) => each !== term).slice(0, MOST) };
}

function Coloured({ text, terms, problem }) {
  const pieces = [];
  let at = 0;
  const put = (stop, tone) => {
    if (stop > at) {
      pieces.push(html`<span class=${tone}>${text.slice(at, stop)}</span>`);
      at = stop;
    }
  };
  if (problem) {
    put(problem.start, "");
    put(problem.stop, "wrong");
  } else
    for (const [start, value] of terms) {
      put(start, "");
      put(value, "acc");
    }
  put(text.length, "");
  return pieces;
}

export function FilterField({ inputRef }) {
  const text = useStore(wire, state => state.text),
    terms = useStore(wire, state => state.terms),
    problem = useStore(wire, state => state.problem);
  const [caret, setCaret] = useState(null); // null: no suggestions
  const [at, setAt] = useState(-1);
  const below = useRef(null),
    own = useRef(null),
    wanted = useRef(null); // where the caret goes with the text that was taken
  // With the text and not a frame later: the next letter may come before it.
  useLayoutEffect(() => {
    if (wanted.current === null) return;
    own.current.focus();
    own.current.setSelectionRange(wanted.current, wanted.current);
    wanted.current = null;
  }, [text]);
  const { start, found } = caret === null ? { start: 0, found: [] } : suggestions(text, caret);
  const takeOne = ([words]) => {
    const rest = text.slice(caret).replace(/^\S*/, ""),
      whole = /:$/.test(words) ? words : words + " ";
    const next = text.slice(0, start) + whole + rest.trimStart();
    setText(next);
    setAt(-1);
    const after = start + whole.length;
    setCaret(/:$/.test(words) ? after : null);
    wanted.current = after;
  };
  const onKeyDown = event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) {
      event.preventDefault();
      setAt((at + step + found.length + (at < 0 && step < 0 ? 1 : 0)) % found.length);
    } else if ((event.key === "Enter" || event.key === "Tab") && at >= 0 && found[at]) {
      event.preventDefault();
      takeOne(found[at]);
    } else if (event.key === "Enter") {
      setCaret(null);
      setText(text);
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      if (found.length && caret !== null) setCaret(null);
      else if (text) setText("");
      else own.current.blur();
    }
  };
  return html`<div class="filter">
    <label class=${`in soft mono${problem ? " err" : ""}`}
      ><${Icon} name="filter" s />
      <span class="typed"
        ><span class="coloured" aria-hidden="true" ref=${below}
          ><${Coloured} text=${text} terms=${terms} problem=${problem}
        /></span>
        <input
          class="bare"
          type="text"
          role="combobox"
          aria-label="Filter"
          aria-expanded=${String(found.length > 0)}
          aria-controls="filter-found"
          aria-autocomplete="list"
          aria-activedescendant=${at >= 0 && found[at] ? `filter-${at}` : null}
          aria-invalid=${String(!!problem)}
          aria-describedby=${problem ? "filter-problem" : null}
          placeholder="Filter: words, method: tool: is:error"
          value=${text}
          spellcheck="false"
          autocomplete="off"
          ref=${element => {
            own.current = element;
            inputRef.current = element;
          }}
          onKeyDown=${onKeyDown}
          onInput=${event => {
            typed(event.target.value);
            setCaret(event.target.selectionStart);
            setAt(-1);
          }}
          onFocus=${event => setCaret(event.target.selectionStart)}
          onBlur=${() => setTimeout(() => setCaret(null), 150)}
          onScroll=${event => {
            below.current.scrollLeft = event.target.scrollLeft;
          }} /></span
      >${!text && html`<kbd>/</kbd>`}</label
    >
    ${
      found.length > 0 &&
      html`<div class="pop filterpop" id="filter-found" role="listbox" aria-label="Suggestions">
        ${found.map(
          ([words, hint], index) =>
            html`<div
              role="option"
              key=${words}
              id=${`filter-${index}`}
              aria-selected=${String(index === at)}
              class=${`suggestion${index === at ? " at" : ""}`}
              onMouseDown=${event => {
                event.preventDefault();
                takeOne([words]);
              }}
            >
              <code>${words}</code><span class="grow"></span><span class="tiny faint">${hint}</span>
            </div>`,
        )}
      </div>`
    }
    ${
      problem &&
      !found.length &&
      html`<div class="pop filterpop problem" id="filter-problem" role="status">
        <p><b>${problem.message}.</b> The list stays as it was.</p>
        <p class="fix"><b>fix:</b> ${problem.fix}</p>
      </div>`
    }
  </div>`;
}
