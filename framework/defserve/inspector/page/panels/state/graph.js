// The tree as a list of rows of one height. Only those in view are drawn. What is in view stays where it is when
// checkpoints come.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact.js";
import { age, number, plural } from "../../format.js";
import { Button, Chip } from "../../parts/controls.js";
import { opens, stepped } from "../../parts/lists.js";
import { Card } from "./card.js";
import { geometry, Lanes, lanesWidth, Strip } from "./drawing.js";

const SPARE = 20;
const CARD_AFTER = 300;

// How long a fold lasted, in short.
const span = seconds => age(0, seconds);

export function Graph({
  tree,
  made,
  colours,
  marks,
  cursor,
  onCursor,
  onMark,
  onUnfold,
  onShown,
  narrow,
  hits,
  gone,
  cardOf,
  listRef,
}) {
  const own = useRef(null),
    frame = useRef(0),
    drawn = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [card, setCard] = useState(null); // { at, row }
  const [fresh, setFresh] = useState(0);
  const shape = geometry(narrow),
    { height } = shape;
  const width = lanesWidth(made.lanes, shape);
  // The newest rows come in softly, if one was there before them.
  const newFrom = useRef(Infinity);
  if (drawn.current?.made.ids > 0 && made.ids > drawn.current.made.ids) newFrom.current = drawn.current.made.ids;
  const first = Math.max(0, Math.min(made.count, Math.floor(view.top / height) - SPARE));
  const last = Math.min(made.count, Math.ceil((view.top + view.height) / height) + SPARE);
  const at = cursor == null ? -1 : (made.rowOf[tree.placeOf.get(cursor) ?? -1] ?? -1);

  const look = () => {
    frame.current = 0;
    const list = own.current;
    if (!list) return;
    if (list.scrollTop < height / 2) setFresh(0);
    setView({ top: list.scrollTop, height: list.clientHeight });
  };
  useLayoutEffect(() => {
    const list = own.current,
      before = drawn.current;
    drawn.current = { made, height };
    if (before && list.scrollTop >= before.height / 2) {
      const top = Math.min(before.made.count - 1, Math.floor(list.scrollTop / before.height));
      const row = made.rowOf[before.made.at[top]] ?? -1; // places stay the same while checkpoints come
      if (row >= 0) list.scrollTop = row * height + list.scrollTop - top * before.height;
      if (made.ids > before.made.ids) setFresh(count => count + made.ids - before.made.ids);
    }
    look();
  }, [made, height]);
  useEffect(() => {
    const watch = new ResizeObserver(look);
    watch.observe(own.current);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    const places = [];
    for (let row = first; row < last; row++) if (!made.folded[row]) places.push(made.at[row]);
    onShown(places);
  }, [made, first, last]);

  const scrollTo = row => {
    const list = own.current;
    if (row * height < list.scrollTop) list.scrollTop = row * height;
    else if ((row + 1) * height > list.scrollTop + list.clientHeight)
      list.scrollTop = (row + 1) * height - list.clientHeight;
  };
  useEffect(() => {
    if (at >= 0) scrollTo(at);
  }, [cursor, at >= 0]);

  // The card: after a moment on a row, by pointer or by keys; it stays while the pointer is on it.
  const timer = useRef(0);
  const later = next => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setCard(next), next ? CARD_AFTER : 150);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const enter = row => later(made.folded[row] ? null : { id: tree.ids[made.at[row]] });
  const byKeys = useRef(false);
  useEffect(() => {
    if (byKeys.current && at >= 0) enter(at);
  }, [at]);

  const open = (row, event) => {
    const place = made.at[row];
    clearTimeout(timer.current);
    setCard(null);
    if (made.folded[row]) onUnfold(made.last[row]);
    else onMark(event.shiftKey ? "b" : "a", tree.ids[place]);
  };
  const onKeyDown = event => {
    const next = stepped(event, at, made.count);
    byKeys.current = true;
    if (next !== null && made.count) {
      event.preventDefault();
      setCard(null);
      onCursor(tree.ids[made.at[next]]);
    } else if (opens(event) && at >= 0) {
      event.preventDefault();
      open(at, event);
    } else if (event.key === "Escape" && card) {
      event.preventDefault();
      event.stopPropagation();
      setCard(null);
    }
  };
  const rows = [];
  for (let row = first; row < last; row++) {
    rows.push(
      made.folded[row]
        ? html`<${Fold}
            key=${"f" + made.last[row]}
            ...${{ tree, made, row, height, narrow }}
            on=${row === at}
            onOpen=${event => {
              onCursor(tree.ids[made.at[row]]);
              open(row, event);
            }}
          />`
        : html`<${Row}
            key=${made.at[row]}
            ...${{ tree, made, row, height, narrow, marks }}
            on=${row === at}
            arrives=${made.at[row] >= newFrom.current}
            hit=${hits.has(made.at[row])}
            lost=${gone.has(made.at[row])}
            parent=${tree.short(tree.ids[tree.parents[made.at[row]]])}
            onEnter=${() => {
              byKeys.current = false;
              enter(row);
            }}
            onLeave=${() => later(null)}
            onOpen=${event => {
              byKeys.current = false;
              onCursor(tree.ids[made.at[row]]);
              open(row, event);
            }}
          />`,
    );
  }
  const cardPlace = card ? tree.placeOf.get(card.id) : undefined;
  const cardRow = cardPlace === undefined ? -1 : made.rowOf[cardPlace];
  return html`<div class="graphbox" style=${{ "--lanes": `${width}px` }}>
    <div class="whead shead no-m" aria-hidden="true">
      <span></span><span>checkpoint</span><span>call and change</span><span class="who2">who</span
      ><span class="r">age</span>
    </div>
    <div class="graphwrap">
      <div
        class="body flush list graph"
        role="treegrid"
        aria-label="Checkpoints, newest first"
        aria-rowcount=${made.count}
        aria-colcount="4"
        tabindex="0"
        aria-activedescendant=${at >= first && at < last ? `cp-${at}` : null}
        onKeyDown=${onKeyDown}
        onScroll=${() => {
          frame.current ||= requestAnimationFrame(look);
        }}
        onBlur=${() => {
          if (byKeys.current) later(null);
        }}
        ref=${element => {
          own.current = element;
          if (listRef) listRef.current = element;
        }}
      >
        <div class="tall" role="presentation" style=${{ height: `${made.count * height}px` }}>
          ${rows}<${Lanes} ...${{ made, colours, shape, width, first, last, gone }} />
        </div>
      </div>
      ${
        cardRow >= 0 &&
        html`<${Card}
          key=${card.id}
          tree=${tree}
          id=${card.id}
          load=${cardOf}
          top=${cardTop(cardRow * height - view.top, height, view.height)}
          onEnter=${() => clearTimeout(timer.current)}
          onLeave=${() => later(null)}
        />`
      }
      <${Strip}
        ...${{ made, colours }}
        top=${view.top / Math.max(1, made.count * height)}
        share=${Math.min(1, view.height / Math.max(1, made.count * height))}
        onGo=${part => {
          own.current.scrollTop = part * made.count * height - view.height / 2;
        }}
      />
      ${
        fresh > 0 &&
        html`<div class="fresh">
          <${Button}
            small
            icon="top"
            onClick=${() => {
              own.current.scrollTop = 0;
              setFresh(0);
            }}
            >${number(fresh)} new<//
          >
        </div>`
      }
    </div>
  </div>`;
}

// Below the row, or above it near the end of the view.
const cardTop = (top, height, whole) =>
  top > whole * 0.6 ? { bottom: `${whole - top + 4}px` } : { top: `${Math.max(4, top + height + 4)}px` };

const place = (row, height) => ({ transform: `translateY(${row * height}px)`, height: `${height}px` });

function Row({ tree, made, row, height, narrow, marks, on, hit, arrives, lost, parent, onEnter, onLeave, onOpen }) {
  const at = made.at[row],
    id = tree.ids[at];
  const isA = marks.a === id,
    isB = marks.b === id,
    isHead = row === made.headRow,
    isNext = tree.next === id && !isHead;
  const call = tree.calls[at],
    change = tree.changes[at];
  const chips = html`${isHead && html`<${Chip} tone="solid">head<//>`}${
    isNext && html`<${Chip} tone="acc" title="the inspector's next call starts here">next<//>`
  }
  ${isA && html`<${Chip} tone="ab">A<//>`}${isB && html`<${Chip} tone="ab">B<//>`}${
    made.tips.has(row) && !isHead && html`<${Chip} title="end of a branch">end<//>`
  }
  ${lost && html`<${Chip} tone="out">not kept<//>`}`;
  const words = html`<span class="vh"
    >, line ${made.line[row] + 1}${tree.parents[at] >= 0 ? `, after ${parent}` : ", the first"}</span
  >`;
  const when = html`<span class="faint r num" role="gridcell" title=${new Date(tree.times[at] * 1000).toLocaleString()}
    >${age(tree.times[at])}</span
  >`;
  const inside = narrow
    ? html`<span class="two2" role="gridcell"
          ><span class="row"
            ><code>${tree.shorts[at]}</code><b class="mono cut nm">${call ?? ""}</b>${chips}${words}</span
          >
          <span class="cut dim tiny">${change ?? ""}</span></span
        >${when}`
    : html`<span role="gridcell" class="mono cut">${tree.shorts[at]}${words}</span
        ><span class="row" role="gridcell"
          >${call && html`<b class="mono nm cut">${call}</b>`}<span class="cut dim" title=${change}
            >${change ?? ""}</span
          >${chips}</span
        >
        <span class="cut faint who2" role="gridcell">${tree.makers[at] ?? ""}</span>${when}`;
  const marked = `${on ? " cur" : ""}${isHead ? " on" : ""}${isA ? " a" : ""}${isB ? " b" : ""}`;
  const cls = `grow2${marked}${hit ? " hit" : ""}${lost ? " off" : ""}${arrives ? " arrives" : ""}`;
  return html`<div
    role="row"
    id=${`cp-${row}`}
    class=${cls}
    aria-rowindex=${row + 1}
    aria-level=${made.lane[row] + 1}
    aria-selected=${String(on)}
    data-id=${id}
    style=${place(row, height)}
    onClick=${onOpen}
    onMouseEnter=${onEnter}
    onMouseLeave=${onLeave}
  >
    <span role="presentation"></span>${inside}
  </div>`;
}

function Fold({ tree, made, row, height, narrow, on, onOpen }) {
  const from = made.at[row],
    to = made.last[row];
  const who = useMemo(() => tree.makersOf(from, to), [tree.version, from, to]);
  const text = `${plural(made.folded[row], "checkpoint")}${who}, ${span(tree.times[from] - tree.times[to])}`;
  return html`<div
    role="row"
    id=${`cp-${row}`}
    class=${`grow2 fold${on ? " cur" : ""}`}
    aria-rowindex=${row + 1}
    aria-level=${made.lane[row] + 1}
    aria-selected=${String(on)}
    aria-expanded="false"
    style=${place(row, height)}
    onClick=${onOpen}
  >
    <span role="presentation"></span><span class="cut" role="gridcell">${text}</span
    ><span role="gridcell" class="unfold">${narrow ? "" : "Unfold"}</span>
  </div>`;
}
