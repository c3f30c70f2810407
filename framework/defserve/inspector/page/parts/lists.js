// Lists with one tab stop. The keys are those of a list everywhere: arrows, J and K, Home, End, Enter.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { app } from "../store.js";

const STEPS = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10 };

// The next index for a key, or null.
export function stepped(event, at, count) {
  if (event.ctrlKey || event.metaKey || event.altKey) return null;
  if (event.key === "Home") return 0;
  if (event.key === "End") return count - 1;
  if (event.key.length === 1 && !app.get().letters) return null;
  const step = STEPS[event.key];
  return step === undefined ? null : Math.max(0, Math.min(count - 1, at + step));
}

// Whether a key opens the chosen row. With Ctrl, Enter is a key of the panel: it calls, reads or fills in.
export const opens = event =>
  (event.key === "Enter" || event.key === " ") && !event.ctrlKey && !event.metaKey && !event.altKey;

// Whether a key leads from the search above a list into it.
export const enters = event => event.key === "ArrowDown" || (event.key === "Enter" && opens(event));

// A listbox. `groups` are [{ key, head, items }]; `row(item, selected)` draws the inside of an option. Moving selects;
// Enter, Space or a click also opens (`onOpen`). `listRef` gets the element, to focus it.
export function List({ label, groups, keyOf, selected, onSelect, onOpen, row, rowClass, listRef, id = "list" }) {
  const own = useRef(null);
  const items = groups.flatMap(group => group.items);
  const at = items.findIndex(item => keyOf(item) === selected);
  const optionId = key => `${id}-${items.findIndex(item => keyOf(item) === key)}`;
  useEffect(() => {
    own.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [selected]);
  const onKeyDown = event => {
    const next = stepped(event, at, items.length);
    if (next !== null && items.length) {
      event.preventDefault();
      onSelect(keyOf(items[next]));
    } else if (opens(event) && at >= 0) {
      event.preventDefault();
      onOpen?.(selected);
    }
  };
  return html`<div
    class="body flush list"
    role="listbox"
    aria-label=${label}
    tabindex="0"
    onKeyDown=${onKeyDown}
    aria-activedescendant=${at >= 0 ? optionId(selected) : null}
    ref=${element => {
      own.current = element;
      if (listRef) listRef.current = element;
    }}
  >
    ${groups.map(
      group =>
        html`<div role="group" key=${group.key} aria-label=${group.label ?? group.key}>
          ${group.head && html`<div role="presentation">${group.head}</div>`}
          ${group.items.map(item => {
            const key = keyOf(item),
              on = key === selected;
            return html`<div
              role="option"
              key=${key}
              id=${optionId(key)}
              aria-selected=${String(on)}
              class=${`${rowClass ?? ""}${on ? " on" : ""}`}
              onClick=${() => {
                onSelect(key);
                onOpen?.(key);
              }}
            >
              ${row(item, on)}
            </div>`;
          })}
        </div>`,
    )}
  </div>`;
}

const SPARE = 20;
const TALLEST = 10000000; // browsers cannot lay out much more

// Any number of rows of one height. `row(index)` draws one; what it needs may be asked for in
// `onRange(first, last, from, to)`: the rows that are drawn, and of these the ones in view. `rowClass` is a text, or a
// function of the index. `follow`: stay at the end while the last row is in view. `label`, `selected` (an index),
// `onSelect`, `onOpen` as in List. With more rows than a browser can lay out, the scroll bar is mapped to indices.
export function VirtualList({
  label,
  count,
  height,
  row,
  rowClass,
  selected,
  onSelect,
  onOpen,
  onRange,
  follow,
  listRef,
  onAtEnd,
  columns,
}) {
  const own = useRef(null),
    atEnd = useRef(true);
  const [view, setView] = useState({ top: 0, height: 600 });
  const whole = count * height,
    shown = Math.min(whole, TALLEST);
  const scale = shown > view.height ? (whole - view.height) / (shown - view.height) : 1;
  const offset = view.top * scale;
  const first = Math.max(0, Math.floor(offset / height) - SPARE);
  const last = Math.min(count, Math.ceil((offset + view.height) / height) + SPARE);
  const from = Math.floor(offset / height),
    to = Math.min(count, Math.ceil((offset + view.height) / height));
  const frame = useRef(0);
  const look = () => {
    frame.current = 0;
    const list = own.current;
    if (!list) return;
    atEnd.current = list.scrollTop + list.clientHeight >= list.scrollHeight - height;
    onAtEnd?.(atEnd.current);
    setView({ top: list.scrollTop, height: list.clientHeight });
  };
  useLayoutEffect(() => {
    if (follow && atEnd.current && own.current) own.current.scrollTop = own.current.scrollHeight;
    look();
  }, [count]);
  useEffect(() => {
    const watch = new ResizeObserver(look);
    watch.observe(own.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    onRange?.(first, last, from, to);
  }, [first, last, from, to]);
  useEffect(() => {
    const list = own.current;
    if (selected == null || selected < 0) return;
    const top = selected * height - (offset - view.top);
    if (top < list.scrollTop) list.scrollTop = (selected * height) / scale;
    else if (top + height > list.scrollTop + list.clientHeight)
      list.scrollTop = (selected * height + height - list.clientHeight) / scale;
  }, [selected]);
  const onKeyDown = event => {
    const next = stepped(event, selected ?? -1, count);
    if (next !== null && count) {
      event.preventDefault();
      onSelect?.(next);
    } else if (opens(event) && selected != null) {
      event.preventDefault();
      onOpen?.(selected);
    }
  };
  // A row that leaves gives its elements to one that comes: fewer are made while the list is scrolled.
  const slots = Math.ceil(view.height / height) + 2 * SPARE + 1;
  const rows = [];
  for (let index = first; index < last; index++) {
    const on = index === selected;
    const extra = (typeof rowClass === "function" ? rowClass(index) : rowClass) ?? "";
    rows.push(
      html`<div
        role="row"
        key=${index % slots}
        id=${`row-${index}`}
        aria-rowindex=${index + 1}
        aria-selected=${String(on)}
        class=${`vrow ${index % 2 ? "odd" : ""} ${extra}${on ? " on" : ""}`}
        style=${{ transform: `translateY(${index * height - offset + view.top}px)`, height: `${height}px` }}
        onClick=${() => {
          onSelect?.(index);
          onOpen?.(index);
        }}
      >
        ${row(index, on)}
      </div>`,
    );
  }
  return html`<div
    class="body flush list virtual"
    role="grid"
    aria-label=${label}
    aria-rowcount=${count}
    aria-colcount=${columns}
    tabindex="0"
    onKeyDown=${onKeyDown}
    aria-activedescendant=${selected != null && selected >= first && selected < last ? `row-${selected}` : null}
    ref=${element => {
      own.current = element;
      if (listRef) listRef.current = element;
    }}
    onScroll=${() => {
      frame.current ||= requestAnimationFrame(look);
    }}
  >
    <div class="tall" role="presentation" style=${{ height: `${shown}px` }}>${rows}</div>
  </div>`;
}
