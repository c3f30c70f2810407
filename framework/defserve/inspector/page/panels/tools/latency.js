// How long the calls of one tool took, as far as they are on the wire.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { ask } from "../../socket.js";
import { duration, plural } from "../../format.js";
import { useStore } from "../../store.js";
import { Empty, ErrorNote, Loading } from "../../parts/notes.js";
import { store } from "./state.js";

const FEW_CALLS = 20; // too few for bars: each is a dot
const at = (sorted, share) => sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)];

export function Latency({ tool }) {
  const [told, setTold] = useState(null);
  const [error, setError] = useState(null);
  const done = useStore(store, state => state.calls).filter(
    call => call.tool === tool && call.state !== "running",
  ).length;
  useEffect(() => {
    ask("tools.latency", { tool }).then(setTold, setError);
  }, [tool, done]);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!told) return html`<${Loading} />`;
  const all = told.calls;
  if (!all.length) return html`<${Empty} icon="bars" title="No calls yet">Call it, and the times appear here.<//>`;
  const sorted = all.map(call => call.ms).sort((a, b) => a - b),
    most = sorted.at(-1) || 1;
  const width = Math.max(4, Math.min(14, 480 / all.length));
  return html`<dl class="kv">
      <dt>calls</dt>
      <dd class="num">${plural(all.length, "call")}</dd>
      <dt>median</dt>
      <dd class="num">${duration(at(sorted, 0.5))}</dd>
      <dt>p95</dt>
      <dd class="num">${duration(at(sorted, 0.95))}</dd>
      <dt>longest</dt>
      <dd class="num">${duration(most)}</dd>
    </dl>
    <svg
      class="latency"
      viewBox=${`0 0 ${Math.max(all.length, 40) * width} 80`}
      preserveAspectRatio=${all.length < FEW_CALLS ? "xMinYMid" : "none"}
      role="img"
      aria-label=${`${plural(all.length, "call")}, median ${duration(at(sorted, 0.5))}`}
    >
      ${all.map((call, index) =>
        all.length < FEW_CALLS
          ? html`<circle
              key=${index}
              class=${`${call.error ? "x" : ""} ${call.era}`}
              cx=${(index + 0.5) * width}
              cy=${76 - (call.ms / most) * 70}
              r="4"
              ><title>${duration(call.ms)}, ${call.era}</title></circle
            >`
          : html`<rect
              key=${index}
              class=${`${call.error ? "x" : ""} ${call.era}`}
              x=${index * width}
              width=${width - 1.5}
              y=${80 - Math.max(2, (call.ms / most) * 78)}
              height=${Math.max(2, (call.ms / most) * 78)}
              ><title>${duration(call.ms)}, ${call.era}</title></rect
            >`,
      )}
    </svg>
    <p class="tiny dim">
      Measured from the request to the answer, on this side of the connection. Oldest at the left.
    </p>`;
}
