// Messages a second over the whole timeline. Drag to choose a span; arrows move it, with Shift its end.
import { html, useRef, useState } from "../../vendor/preact.js";
import { clock, number } from "../../format.js";

const HEIGHT = 36;

export function Overview({ overview, span, onSpan, view }) {
  const own = useRef(null);
  const [drag, setDrag] = useState(null); // [from, to] as shares of the width
  const { start = 0, width = 1, bars = [] } = overview ?? {};
  const whole = Math.max(1, bars.length) * width;
  const most = Math.max(1, ...bars.map(([count]) => count));
  const share = time => Math.max(0, Math.min(1, (time - start) / whole));
  const at = event => {
    const box = own.current.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  const choose = (a, b) => onSpan({ from: start + Math.min(a, b) * whole, to: start + Math.max(a, b) * whole });
  const begin = event => {
    if (!bars.length || event.button !== 0) return;
    const from = at(event);
    own.current.setPointerCapture(event.pointerId);
    own.current.onpointermove = moved => setDrag([from, at(moved)]);
    own.current.onpointerup = ended => {
      own.current.onpointermove = own.current.onpointerup = null;
      setDrag(null);
      if (Math.abs(at(ended) - from) * own.current.clientWidth > 4) choose(from, at(ended));
    };
  };
  const onKeyDown = event => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && bars.length) {
      event.preventDefault();
      const [from, to] = span
        ? [(span.from - start) / width, (span.to - start) / width].map(Math.round)
        : [0, bars.length];
      const by = event.shiftKey || !span ? [from, Math.max(from + 1, to + step)] : [from + step, to + step];
      choose(Math.max(0, by[0]) / bars.length, Math.min(bars.length, by[1]) / bars.length);
    } else if (event.key === "Escape" && span) {
      event.preventDefault();
      event.stopPropagation();
      onSpan(null);
    }
  };
  const [from, to] = drag
    ? [Math.min(...drag), Math.max(...drag)]
    : span
      ? [share(span.from), share(span.to)]
      : view
        ? [share(view[0]), share(view[1])]
        : [0, 0];
  const chosen = drag || span;
  const when = span ? `, from ${clock(span.from, false)} to ${clock(span.to, false)}` : "";
  const words =
    `Messages a second${when}. Most in one bar: ${number(most)}. ` + "Arrows choose a span, Escape shows all.";
  return html`<div
    class="mini"
    role="slider"
    tabindex="0"
    aria-label="Overview"
    aria-valuemin="0"
    aria-valuemax=${bars.length}
    aria-valuenow=${Math.round(from * bars.length)}
    aria-valuetext=${words}
    title=${span ? "Double-click for all" : "Drag to choose a span"}
    ref=${own}
    onPointerDown=${begin}
    onDblClick=${() => onSpan(null)}
    onKeyDown=${onKeyDown}
  >
    <svg viewBox=${`0 0 ${Math.max(1, bars.length) * 8} 44`} preserveAspectRatio="none" aria-hidden="true">
      ${bars.map(
        ([count, errors], index) =>
          count > 0 &&
          html`<rect
            key=${index}
            class=${errors ? "bad" : ""}
            x=${index * 8 + 1}
            y=${HEIGHT - Math.max(2, (count / most) * (HEIGHT - 5))}
            width="6"
            height=${Math.max(2, (count / most) * (HEIGHT - 5))}
          />`,
      )}
      <path class="ground" d=${`M0 36.5h${Math.max(1, bars.length) * 8}`} />
      ${
        to > from &&
        html`<rect
          class=${`span${chosen ? " chosen" : ""}`}
          x=${from * bars.length * 8}
          y="0"
          width=${Math.max(2, (to - from) * bars.length * 8)}
          height="44"
        />`
      }
    </svg>
  </div>`;
}
