// JSON to read: indented, coloured, cut where it is long. Everything is text. Only lines that are shown are made.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Button, Copy, Search } from "./controls.js";
import { number, plural } from "../format.js";
import { isScalar } from "./parsing.js";

const MOST_LINES = 400;
const MOST_AT_ALL = 20000;
const LONG_TEXT = 2000;
const FEW_LINES = 12; // what is as short needs no search
const SHORT = 60; // characters of what stays on one line

const scalar = (value, longest) =>
  typeof value === "string"
    ? html`<span class="s"
        >${JSON.stringify(
          value.length > longest ? value.slice(0, longest) + `… (${number(value.length)} characters)` : value,
        )}</span
      >`
    : html`<span class="v">${JSON.stringify(value) ?? "undefined"}</span>`;

const isFlat = members => members.length < SHORT && members.every(isScalar);

// The lines of a value: { depth, content, text, opens, closes }. Small arrays and objects stay on one line. `text` is
// what is searched; a line that `opens` something can be folded up to the one that `closes` it.
function* lines(value, longest, depth = 0, before = null, after = "", name = "") {
  if (isScalar(value)) {
    const content = html`${before}${scalar(value, longest)}${after}`;
    yield { depth, content, text: `${name}${JSON.stringify(value)}` };
    return;
  }
  const keys = Array.isArray(value) ? null : Object.keys(value),
    members = keys ? Object.values(value) : value;
  const [open, close] = keys ? "{}" : "[]";
  const label = at => keys && html`<span class="p">${JSON.stringify(keys[at])}</span>: `;
  if (!members.length) {
    yield { depth, content: html`${before}${open}${close}${after}`, text: name };
    return;
  }
  if (isFlat(members) && JSON.stringify(value).length <= SHORT) {
    const inside = members.map((each, at) => html`${at ? ", " : ""}${label(at)}${scalar(each, longest)}`);
    const content = html`${before}${open} ${inside} ${close}${after}`;
    yield { depth, content, text: name + JSON.stringify(value) };
    return;
  }
  const folded = html`${before}${open} <span class="faint">${number(members.length)} …</span> ${close}${after}`;
  yield { depth, content: html`${before}${open}`, text: name, opens: true, folded };
  for (let at = 0; at < members.length; at++) {
    const comma = at < members.length - 1 ? "," : "";
    yield* lines(members[at], longest, depth + 1, label(at), comma, keys ? `"${keys[at]}": ` : "");
  }
  yield { depth, content: html`${close}${after}`, text: "", closes: true };
}

// The first lines of a value, and whether there are more.
function first(value, most, longest) {
  const shown = [];
  for (const line of lines(value, longest)) {
    if (shown.length >= most) return [shown, true];
    shown.push({ ...line, at: shown.length });
  }
  return [shown, false];
}

// The lines outside of what is folded.
function unfolded(all, folds) {
  const seen = [];
  let hidden = null; // the depth of what is folded here
  for (const line of all) {
    if (hidden !== null) {
      if (line.depth === hidden && line.closes) hidden = null;
      continue;
    }
    const isFolded = line.opens && folds.has(line.at);
    if (isFolded) hidden = line.depth;
    seen.push(isFolded ? { ...line, content: line.folded } : line);
  }
  return seen;
}

// Search, wrap, fold, above a value of many lines.
function Tools({ words, setWords, wraps, setWraps, isFolded, fold, found, onNext }) {
  return html`<div class="row jsontools">
    <${Search}
      value=${words}
      onInput=${setWords}
      placeholder="Search in the result"
      keys=""
      onKeyDown=${event => {
        if (event.key === "Enter") {
          event.preventDefault();
          onNext(event.shiftKey ? -1 : 1);
        }
      }}
    />
    <span class="tiny faint num" role="status">${words ? plural(found, "line") : ""}</span>
    <${Button} small plain aria-pressed=${String(wraps)} onClick=${() => setWraps(!wraps)}
      >${wraps ? "Do not wrap" : "Wrap"}<//
    >
    <${Button} small plain onClick=${fold}>${isFolded ? "Unfold all" : "Fold all"}<//>
  </div>`;
}

// `whole` is for what a person says yes to: no text in it is cut. `tools`: it can be searched, wrapped and folded.
export function Json({ value, most = MOST_LINES, label = "JSON", copy, whole, tools }) {
  const [all, setAll] = useState(false);
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const [wraps, setWraps] = useState(true);
  const [folds, setFolds] = useState(new Set());
  const own = useRef(null);
  const [known, more] = useMemo(
    () => first(value, all || words ? MOST_AT_ALL : most, whole ? Infinity : LONG_TEXT),
    [value, all, !words],
  );
  const asked = words.toLowerCase();
  const hits = useMemo(
    () => (asked ? known.filter(line => line.text.toLowerCase().includes(asked)).map(line => line.at) : []),
    [known, asked],
  );
  const hit = hits[at % Math.max(1, hits.length)];
  // What is searched for is not hidden. Of many lines, those around the hit are drawn.
  const seen = useMemo(() => (asked ? known : unfolded(known, folds)), [known, folds, asked]);
  const begin = asked && !all && hit > most / 2 ? Math.floor(hit - most / 2) : 0;
  const shown = all ? seen : seen.slice(begin, begin + most);
  useEffect(() => own.current?.querySelector(".hit.now")?.scrollIntoView({ block: "nearest" }), [hit]);
  const foldable = known.filter(line => line.opens && line.at > 0);
  const fold = line => {
    const next = new Set(folds);
    if (!next.delete(line)) next.add(line);
    setFolds(next);
  };
  const isLong = tools && known.length > FEW_LINES;
  const line = each =>
    html`<span
      key=${each.at}
      class=${`jl${hits.includes(each.at) ? ` hit${each.at === hit ? " now" : ""}` : ""}`}
      style=${{ "--in": 2 * each.depth }}
      >${
        isLong &&
        html`<span
          class=${`fold${each.opens && each.at ? "" : " none"}`}
          aria-hidden="true"
          onClick=${() => each.opens && each.at && fold(each.at)}
          >${folds.has(each.at) && !asked ? "▸" : "▾"}</span
        >`
      }${"  ".repeat(each.depth)}${each.content}${"\n"}</span
    >`;
  return html`<div class="jsonbox" ref=${own}>
    ${
      isLong &&
      html`<${Tools}
        words=${words}
        setWords=${next => {
          setWords(next);
          setAt(0);
        }}
        wraps=${wraps}
        setWraps=${setWraps}
        isFolded=${folds.size > 0}
        fold=${() => setFolds(folds.size ? new Set() : new Set(foldable.map(each => each.at)))}
        found=${hits.length}
        onNext=${step => setAt((at + step + hits.length) % Math.max(1, hits.length))}
      />`
    }
    ${copy && html`<${Copy} text=${() => JSON.stringify(value, null, 2)} label="Copy JSON" class="corner" />`}
    <pre class=${`json${isLong && wraps ? " wraps" : ""}`} tabindex="0" role="region" aria-label=${label}>
${shown.map(line)}</pre>
    ${
      more && !words
        ? all
          ? html`<p class="dim small">These are the first ${number(MOST_AT_ALL)} lines. Copy it to see the rest.</p>`
          : html`<${Button} small plain onClick=${() => setAll(true)}>Show more lines<//>`
        : null
    }
  </div>`;
}
