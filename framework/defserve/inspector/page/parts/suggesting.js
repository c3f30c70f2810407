// A field whose values the server suggests while one types.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

const PAUSE = 150;

// `suggest(text)` gives a promise of texts, or null if nobody suggests any. Arrows choose, Enter takes, Esc closes.
export function Suggesting({ id, value, onChange, suggest, placeholder, invalid, describedBy, onEnter }) {
  const [found, setFound] = useState([]);
  const [at, setAt] = useState(-1);
  const [open, setOpen] = useState(false);
  const asked = useRef(0),
    timer = useRef(0),
    list = useRef(null);
  const look = text => {
    clearTimeout(timer.current);
    if (!suggest) return;
    const mine = ++asked.current;
    timer.current = setTimeout(
      () =>
        suggest(text).then(
          values => {
            // Nothing is left to suggest once it is typed.
            if (mine === asked.current) {
              setFound(values);
              setAt(-1);
              setOpen(values.some(each => each !== text));
            }
          },
          () => {},
        ),
      PAUSE,
    );
  };
  const close = () => {
    clearTimeout(timer.current);
    asked.current++;
    setOpen(false);
  };
  useEffect(() => close, []);
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [at]);
  const take = text => {
    onChange(text);
    close();
  };
  const onKeyDown = event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && suggest) {
      event.preventDefault();
      if (open) setAt((at + step + found.length) % found.length);
      else look(value);
    } else if (event.key === "Enter") {
      if (open && at >= 0) {
        event.preventDefault();
        take(found[at]);
      } else {
        close();
        if (!event.ctrlKey) onEnter?.(event);
      }
    } else if (event.key === "Escape" && open) {
      event.preventDefault();
      event.stopPropagation();
      close();
    }
  };
  const combo = suggest
    ? {
        role: "combobox",
        "aria-expanded": String(open),
        "aria-controls": `${id}-found`,
        "aria-autocomplete": "list",
        "aria-activedescendant": open && at >= 0 ? `${id}-found-${at}` : null,
      }
    : {};
  return html`<div class="suggesting">
    <div class=${`in${invalid ? " err" : ""}`}>
      <input
        class="bare grow"
        id=${id}
        type="text"
        value=${value}
        placeholder=${placeholder}
        spellcheck="false"
        autocomplete="off"
        aria-invalid=${String(!!invalid)}
        aria-describedby=${describedBy}
        onInput=${event => {
          onChange(event.target.value);
          look(event.target.value);
        }}
        onFocus=${() => look(value)}
        onBlur=${close}
        onKeyDown=${onKeyDown}
        ...${combo}
      />
    </div>
    <div
      id=${`${id}-found`}
      role="listbox"
      aria-label="Suggested values"
      class="pop suggested"
      hidden=${!open}
      ref=${list}
    >
      ${
        open &&
        found.map(
          (each, index) =>
            html`<div
              role="option"
              key=${each}
              id=${`${id}-found-${index}`}
              aria-selected=${String(index === at)}
              class=${`mono${index === at ? " at" : ""}`}
              onMouseDown=${event => {
                event.preventDefault();
                take(each);
              }}
            >
              ${each}
            </div>`,
        )
      }
    </div>
  </div>`;
}
