// Buttons, chips, segments, switches, tabs.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Icon } from "./icons.js";

const classes = (...names) => names.filter(Boolean).join(" ");

// `primary`: one a pane. `busy`: a spinner in place of the icon. `reason`: why it is disabled, for everybody to read.
// `children` may be left out with a `label`, for a button that shows an icon alone.
export function Button({
  icon,
  primary,
  danger,
  plain,
  small,
  busy,
  keys,
  reason,
  label,
  class: more,
  after,
  children,
  ...rest
}) {
  const alone = children == null || children === false;
  return html`<button
    type="button"
    class=${classes(
      "btn",
      primary && "pri",
      danger && "danger",
      plain && "plain",
      small && "sm",
      alone && "icon",
      more,
    )}
    aria-label=${label}
    title=${reason ?? (alone ? label : null)}
    disabled=${!!reason || rest.disabled}
    aria-description=${reason}
    ...${rest}
  >
    ${(icon || busy) && html`<${Icon} name=${busy ? "spinner" : icon} s=${!alone || small} />`}${children}
    ${after && html`<${Icon} name=${after} s />`}${keys && html`<kbd>${keys}</kbd>`}
  </button>`;
}

// `tone`: ok, warn, bad, acc, out (a requirement), solid (the head), k (with `class` k1 … k6); none for a plain fact.
export const Chip = ({ tone, icon, class: more, children, ...rest }) =>
  html`<span class=${classes("chip", tone, more)} ...${rest}>
    ${icon && html`<${Icon} name=${icon} s />`}${children}</span
  >`;

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text, className: "vh" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// Copies `text`, a text or a function that gives one. Without children it is an icon.
export function Copy({ text, label = "Copy", children, ...rest }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => setDone(await copyText(typeof text === "function" ? await text() : text));
  return html`<${Button}
    icon=${done ? "check" : "copy"}
    plain
    small
    label=${done ? "Copied" : label}
    onClick=${copy}
    ...${rest}
    >${children}<//
  >`;
}

// One of several: `options` are [value, words] pairs. Arrow keys move.
export function Segments({ label, options, value, onChange, class: more }) {
  const move = event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = options.findIndex(([each]) => each === value);
    onChange(options[(at + step + options.length) % options.length][0]);
    queueMicrotask(() => requestAnimationFrame(() => event.target.closest?.(".seg")?.querySelector(".on")?.focus()));
  };
  return html`<div class=${classes("seg", more)} role="radiogroup" aria-label=${label} onKeyDown=${move}>
    ${options.map(
      ([each, words, tone]) =>
        html`<button
          type="button"
          role="radio"
          key=${each}
          aria-checked=${String(each === value)}
          tabindex=${each === value || (value == null && each === options[0][0]) ? 0 : -1}
          class=${each === value ? classes("on", tone) : ""}
          onClick=${() => onChange(each)}
        >
          ${words}
        </button>`,
    )}
  </div>`;
}

export const Switch = ({ label, on, onChange, disabled, id }) =>
  html`<button
    type="button"
    role="switch"
    id=${id}
    class=${classes("sw", on && "on")}
    aria-checked=${String(!!on)}
    aria-label=${label}
    disabled=${disabled}
    onClick=${() => onChange(!on)}
  ></button>`;

// `tabs` are [id, content] pairs. `children` come after them, at the right.
export function Tabs({ label, tabs, value, onChange, class: more, children }) {
  const own = useRef(null);
  useEffect(() => {
    own.current.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [value, tabs.length]);
  const move = event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = tabs.findIndex(([each]) => each === value);
    const next = tabs[(at + step + tabs.length) % tabs.length][0];
    onChange(next);
    const list = event.currentTarget;
    requestAnimationFrame(() => list.querySelector("[aria-selected=true]")?.focus());
  };
  return html`<div class=${classes("tabs", more)}>
    <div role="tablist" aria-label=${label} class="tablist" onKeyDown=${move} ref=${own}>
      ${tabs.map(
        ([each, content, cls]) =>
          html`<button
            type="button"
            role="tab"
            key=${each}
            aria-selected=${String(each === value)}
            tabindex=${each === value ? 0 : -1}
            class=${classes(each === value && "on", cls)}
            onClick=${() => onChange(each)}
          >
            ${content}
          </button>`,
      )}
    </div>
    ${children && html`<span class="grow"></span>`}${children}
  </div>`;
}

// A field to search in. `inputRef` gets the input.
export function Search({ value, onInput, placeholder, label, keys = "/", inputRef, icon = "search", mono, onKeyDown }) {
  const own = useRef(null);
  return html`<label class=${classes("in soft", mono && "mono")}
    ><${Icon} name=${icon} s />
    <input
      class="grow bare"
      type="text"
      role="searchbox"
      aria-label=${label ?? placeholder}
      placeholder=${placeholder}
      value=${value}
      spellcheck="false"
      autocomplete="off"
      ref=${element => {
        own.current = element;
        if (inputRef) inputRef.current = element;
      }}
      onInput=${event => onInput(event.target.value)}
      onKeyDown=${event => {
        if (event.key === "Escape" && value) {
          event.preventDefault();
          event.stopPropagation();
          onInput("");
          return;
        }
        onKeyDown?.(event);
      }}
    />${keys && !value && html`<kbd>${keys}</kbd>`}</label
  >`;
}
