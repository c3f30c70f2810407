// What lies above the page: dialogs, menus, toasts. Each gives the focus back when it closes.
import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { useKeys } from "../keys.js";
import { app, useStore } from "../store.js";
import { Button } from "./controls.js";
import { Icon } from "./icons.js";

export function useFocus(element, first) {
  useLayoutEffect(() => {
    const before = document.activeElement;
    (
      element.current.querySelector(first ?? "[autofocus]") ??
      element.current.querySelector("button, input, [tabindex='0']")
    )?.focus();
    return () => before?.focus?.();
  }, []);
}

// Tab stays in a modal while it is open.
export function useTrap(dialog) {
  useLayoutEffect(() => {
    const trap = event => keepTabInside(event, dialog.current);
    document.addEventListener("keydown", trap, true);
    return () => document.removeEventListener("keydown", trap, true);
  }, []);
}

const STOPS = "button:not(:disabled), input, select, textarea, a[href], [tabindex='0']";
// Also where a click beside the controls has taken the focus out of the dialog. The last of several is the topmost.
function keepTabInside(event, dialog) {
  if (event.key !== "Tab" || [...document.querySelectorAll("[aria-modal=true]")].at(-1) !== dialog) return;
  const stops = [...dialog.querySelectorAll(STOPS)].filter(each => each.tabIndex >= 0);
  const [edge, next] = event.shiftKey ? [stops[0], stops.at(-1)] : [stops.at(-1), stops[0]];
  if (document.activeElement !== edge && dialog.contains(document.activeElement)) return;
  event.preventDefault();
  next?.focus();
}

// A modal. `onClose` is called by Esc; a click outside closes it only if `light`. `foot` has the buttons; the one with
// `data-first` gets the focus. `scrolls`: it may be long and has nothing else that keys could scroll it by.
export function Dialog({
  title,
  role = "dialog",
  onClose,
  light,
  foot,
  icon,
  wide,
  scrolls,
  children,
  first = "[data-first]",
}) {
  const own = useRef(null);
  useFocus(own, first);
  useTrap(own);
  useKeys({ escape: () => onClose?.() });
  return html`<div
    class="scrim"
    onMouseDown=${event => {
      if (light && event.target === event.currentTarget) onClose?.();
    }}
  >
    <div class=${`dlg${wide ? " wide" : ""}`} role=${role} aria-modal="true" aria-labelledby="dialog-title" ref=${own}>
      <div class="dh">
        ${icon}
        <h2 id="dialog-title" class="grow">${title}</h2>
      </div>
      <div class="dbody" tabindex=${scrolls ? 0 : null}>${children}</div>
      ${foot && html`<div class="df">${foot}</div>`}
    </div>
  </div>`;
}

// A button with a menu below. `items` are [words, run] pairs.
export function Menu({ children, items, label, ...rest }) {
  const [open, setOpen] = useState(false);
  const own = useRef(null);
  const close = () => {
    setOpen(false);
    own.current?.querySelector("button")?.focus();
  };
  useKeys({ escape: close }, open);
  useLayoutEffect(() => {
    if (!open) return undefined;
    own.current.querySelector("[role=menuitem]")?.focus();
    const away = event => {
      if (!own.current?.contains(event.target)) setOpen(false);
    };
    addEventListener("mousedown", away);
    return () => removeEventListener("mousedown", away);
  }, [open]);
  const move = event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...own.current.querySelectorAll("[role=menuitem]")];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length]?.focus();
  };
  return html`<span class="menu" ref=${own} onKeyDown=${move}
    ><${Button}
      after="down"
      aria-haspopup="menu"
      aria-expanded=${String(open)}
      onClick=${() => setOpen(!open)}
      ...${rest}
      >${children}<//
    >
    ${
      open &&
      html`<div class="pop menupop" role="menu" aria-label=${label}>
        ${items.map(
          ([words, run]) =>
            html`<button
              type="button"
              role="menuitem"
              key=${words}
              onClick=${() => {
                close();
                run();
              }}
            >
              ${words}
            </button>`,
        )}
      </div>`
    }</span
  >`;
}

export function Toasts() {
  const toasts = useStore(app, state => state.toasts);
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.map(
      each =>
        html`<div class=${`toast ${each.tone}`} key=${each.id}>
          <${Icon} name=${{ bad: "warning", asks: "question" }[each.tone] ?? "check"} s />${each.text}
        </div>`,
    )}
  </div>`;
}

// Below the rest of a panel. It keeps its height; Esc closes it.
export function Drawer({ label, head, onClose, children }) {
  useKeys({ escape: () => onClose() });
  return html`<section class="pane drawer" aria-label=${label}>
    <div class="tabs drawerhead">${head}<${Button} icon="close" plain small label="Close" onClick=${onClose} /></div>
    ${children}
  </section>`;
}
