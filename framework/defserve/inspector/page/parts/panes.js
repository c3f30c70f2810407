// Panes side by side. The lines between them can be dragged, or moved with arrow keys, and are remembered.
import { html, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

const KEPT = "defserve.panes.";
const NARROWEST = 160;

const kept = id => {
  try {
    return JSON.parse(localStorage.getItem(KEPT + id));
  } catch {
    return null;
  }
};

// `class` has the widths by default. The last pane takes what is left. `show`: on a phone, the class of the pane in
// view.
export function Panes({ id, class: more, children, title, show = "" }) {
  const own = useRef(null);
  const [sizes, setSizes] = useState(() => kept(id));
  const panes = [children].flat().filter(Boolean);
  const widths = () =>
    [...own.current.children]
      .filter(each => each.classList.contains("pane"))
      .map(each => each.getBoundingClientRect().width);
  const move = (at, by) => {
    const now = widths();
    const step = Math.max(NARROWEST - now[at], Math.min(by, now[at + 1] - NARROWEST));
    now[at] += step;
    now[at + 1] -= step;
    setSizes(now.slice(0, -1));
    localStorage.setItem(KEPT + id, JSON.stringify(now.slice(0, -1)));
  };
  const [now, setNow] = useState([]); // how wide they are, for readers
  useLayoutEffect(() => {
    setNow(widths().map(Math.round));
  }, [sizes, panes.length]);
  const reset = () => {
    localStorage.removeItem(KEPT + id);
    setSizes(null);
  };
  const drag = (at, event) => {
    event.preventDefault();
    let last = event.clientX;
    const line = event.currentTarget;
    line.setPointerCapture(event.pointerId);
    line.onpointermove = moved => {
      move(at, moved.clientX - last);
      last = moved.clientX;
    };
    line.onpointerup = () => {
      line.onpointermove = line.onpointerup = null;
    };
  };
  const wide = innerWidth >= 720;
  const columns =
    sizes && wide && sizes.length === panes.length - 1
      ? sizes.map(size => `minmax(0, ${Math.round(size)}px)`).join(" ") + ` minmax(${NARROWEST}px, 1fr)`
      : null;
  return html`<main
    class=${`main cols ${more} ${show}`}
    id="main"
    tabindex="-1"
    ref=${own}
    style=${columns ? { gridTemplateColumns: columns } : {}}
  >
    <h1 class="vh">${title}</h1>
    ${panes.map((pane, at) => [
      pane,
      at < panes.length - 1 &&
        html`<div
          class="line"
          key=${"line" + at}
          role="separator"
          aria-orientation="vertical"
          tabindex="0"
          aria-label=${`Line ${at + 1} between panes`}
          aria-valuenow=${now[at] ?? 0}
          aria-valuemin=${NARROWEST}
          aria-valuemax=${(now[at] ?? 0) + (now[at + 1] ?? 0)}
          style=${{ gridColumn: at + 2 }}
          onPointerDown=${event => drag(at, event)}
          onDblClick=${reset}
          onKeyDown=${event => {
            const by = { ArrowLeft: -16, ArrowRight: 16 }[event.key];
            if (by) {
              event.preventDefault();
              move(at, by);
            }
          }}
        ></div>`,
    ])}
  </main>`;
}

export const Pane = ({ label, class: more = "", children, ...rest }) =>
  html`<section class=${`pane ${more}`} aria-label=${label} ...${rest}>${children}</section>`;

// Panes one above the other, with a drawer below.
export const Stacked = ({ class: more, title, children, show = "" }) =>
  html`<main class=${`main ${more} ${show}`} id="main" tabindex="-1">
    <h1 class="vh">${title}</h1>
    ${children}
  </main>`;
