// Wire: every message both ways, as a timeline.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { useKeys } from "../keys.js";
import { ask } from "../socket.js";
import { app, toast, useStore } from "../store.js";
import { number, plural } from "../format.js";
import { Button, Segments, copyText } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { Menu } from "../parts/layers.js";
import { VirtualList } from "../parts/lists.js";
import { Empty } from "../parts/notes.js";
import { Stacked } from "../parts/panes.js";
import { MessageDrawer } from "./wire/drawer.js";
import { FilterField } from "./wire/filter.js";
import {
  canTick,
  follow,
  look,
  pause,
  rowAt,
  save,
  saveSession,
  saveTest,
  see,
  select,
  setText,
  start,
  tick,
  unfollow,
  wire as store,
} from "./wire/model.js";
import { Overview } from "./wire/overview.js";
import { Head, Row, windowOf } from "./wire/rows.js";

const HEIGHT = 26;
const SETTLE_MS = 80;
const barWidth = () =>
  innerWidth >= 1440 ? 400 : innerWidth >= 1200 ? 260 : innerWidth >= 960 ? 180 : innerWidth >= 720 ? 104 : 0;

function useBarWidth() {
  const [width, setWidth] = useState(barWidth);
  useEffect(() => {
    const look = () => setWidth(barWidth());
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, []);
  return width;
}

// `#wire/41` shows the message 41, `#wire/id:7` whatever fits the filter, with its first row open.
async function show(rest) {
  if (/^\d+$/.test(rest)) {
    await showMessage(Number(rest));
  } else if (rest) {
    await setText(rest);
    const tab = rest.startsWith("checkpoint:") ? "state" : "pair";
    store.set({ selected: { index: 0, seq: null }, open: true, tab });
  }
}

const EVERYTHING = { filter: "", kind: "all", from: undefined, to: undefined };

async function showMessage(seq) {
  const find = () => ask("wire.find", { ...store.get().query, seq }).catch(() => ({ place: null }));
  let { place } = await find();
  if (place === null) {
    store.set({ text: "", terms: [], problem: null });
    see({ ...EVERYTHING, hides_own: false });
    ({ place } = await find());
  }
  store.set({ selected: { index: place, seq }, open: true });
}

// Members of the store, each of which draws anew when it changes.
const use = (...names) => names.map(name => useStore(store, state => state[name]));

function TopBar({ filterRef }) {
  const [query, errors, rows, messages, paused, fresh] = use("query", "errors", "rows", "messages", "paused", "fresh");
  const saved = useStore(app, state => state.target.saved);
  const [saving, setSaving] = useState(null);
  const kinds = [
    ["all", "All"],
    ["requests", "Requests"],
    ["notices", "Notices"],
    ["errors", html`Errors ${errors > 0 && html`<span class="num bad">${number(errors)}</span>`}`],
  ];
  const keep = async write => {
    setSaving(0);
    try {
      await write(setSaving);
    } catch (error) {
      toast(`The file was not saved: ${error.message}`, "bad");
    } finally {
      setSaving(null);
    }
  };
  return html`<div class="bar topbar wirebar">
    <${FilterField} inputRef=${filterRef} />
    <${Segments} label="Kinds" options=${kinds} value=${query.kind} onChange=${kind => see({ kind })} />
    <button
      type="button"
      class=${`btn sm toggle${query.answers ? " on" : ""}`}
      aria-pressed=${String(query.answers)}
      title="Each answer in a row of its own"
      onClick=${() => see({ answers: !query.answers })}
    >
      Answers
    </button>
    <button
      type="button"
      class=${`btn sm toggle${query.hides_own ? "" : " on"}`}
      aria-pressed=${String(!query.hides_own)}
      title="What the inspector sends for itself: lists, discovery, pings, watches"
      onClick=${() => see({ hides_own: !query.hides_own })}
    >
      Own
    </button>
    <span class="row gap12 small dim legend"
      ><span class="row gap4"
        ><span class="acc"><${Icon} name="sent" s /></span>sent</span
      ><span class="row gap4"
        ><span class="ok"><${Icon} name="received" s /></span>received</span
      >
      <span class="row gap4"
        ><svg width="56" height="10" aria-hidden="true">
          <rect class="early" y="1" width="16" height="8" rx="2" />
          <rect class="late" x="17" y="1" width="26" height="8" rx="2" />
          <circle class="notice" cx="51" cy="5" r="3" /></svg
        ><span class="nowrap">to first part, rest, notice</span></span
      ></span
    >
    <span class="grow"></span
    ><span class="small dim num nowrap wcounted"
      >${rows === null ? "" : rows === messages ? number(rows) : `${number(rows)} of ${number(messages)}`}</span
    >
    <${Button} icon=${paused ? "play" : "pause"} keys="P" onClick=${pause} aria-pressed=${String(paused)}
      >${paused ? (fresh ? `Go on, ${number(fresh)} new` : "Go on") : "Pause"}<//
    >
    <${Button}
      plain
      onClick=${() => ask("wire.clear")}
      reason=${saved ? "A saved session stays as it is" : messages ? null : "There is nothing to clear"}
      >Clear<//
    >
    <${Menu}
      plain
      icon="save"
      busy=${saving !== null}
      label="Save"
      items=${[
        ["Save session, to open it again", () => keep(saveSession)],
        ["Save the shown messages as JSON lines", () => keep(save)],
      ]}
      aria-label="Save"
      ><span class="no-m">${saving === null ? "Save" : `${Math.round(saving * 100)} %`}</span><//
    >
  </div>`;
}

function NothingHere({ query, messages }) {
  const filtered = query.filter || query.kind !== "all" || query.from !== undefined;
  if (query.hides_own && messages > 0)
    return html`<${Empty}
      icon="wire"
      title=${filtered ? "No message fits" : "No call yet"}
      action=${html`<a class="btn" href="#tools">Call a tool</a>`}
      ><p>${filtered ? "The filter hides every message, or" : "So far"} they are the inspector's own.</p>
      <${Button} small plain onClick=${() => see({ hides_own: false })}>Show its own messages too<//><//
    >`;
  return filtered && messages > 0
    ? html`<${Empty}
        icon="filter"
        title="No message fits"
        action=${html`<${Button}
          onClick=${() => {
            store.set({ text: "", terms: [], problem: null });
            see(EVERYTHING);
          }}
          >Show all ${number(messages)}<//
        >`}
        >The filter hides every message.<//
      >`
    : html`<${Empty} icon="wire" title="No message yet" action=${html`<a class="btn" href="#tools">Call a tool</a>`}
        >Messages appear here as they pass.<//
      >`;
}

// The time that the bars show. It follows the rows in view once scrolling has come to rest.
function useFrame(turn, width) {
  const [frame, setFrame] = useState(null);
  const seen = useRef([0, 0]),
    timer = useRef(0);
  const settle = () => {
    timer.current = 0;
    const rows = [];
    for (let index = seen.current[0]; index < seen.current[1]; index++) if (rowAt(index)) rows.push(rowAt(index));
    const next = windowOf(rows, width);
    setFrame(before =>
      before && next && before.start === next.start && before.span === next.span && before.step === next.step
        ? before
        : next,
    );
  };
  useEffect(() => {
    if (!timer.current) settle();
  }, [turn, width]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const moved = (from, to) => {
    seen.current = [from, to];
    clearTimeout(timer.current);
    timer.current = setTimeout(settle, SETTLE_MS);
  };
  return [frame, moved];
}

function Timeline({ listRef, onOpen }) {
  const [query, rows, messages, selected, lit, overview, turn, ticked] = use(
    "query",
    "rows",
    "messages",
    "selected",
    "lit",
    "overview",
    "turn",
    "ticked",
  );
  const width = useBarWidth();
  const [frame, moved] = useFrame(turn, width);
  const [atEnd, setAtEnd] = useState(true);
  const left = useRef(0); // how many rows there were when the end was last in view
  const [gap, setGap] = useState(0);
  useEffect(() => {
    const list = listRef.current;
    if (list) setGap(list.offsetWidth - list.clientWidth);
  }, [rows === null || rows === 0, selected === null]);
  const span = query.from === undefined ? null : query;
  const fresh = atEnd ? 0 : Math.max(0, (rows ?? 0) - left.current);
  const toEnd = () => {
    listRef.current.scrollTop = listRef.current.scrollHeight;
    listRef.current.focus();
  };
  const isLit = row => row && lit && row.id !== undefined && `${row.era} ${row.id}` === lit;
  return html`<${Overview}
      overview=${overview}
      span=${span}
      view=${frame && [frame.start, frame.last]}
      onSpan=${chosen => see(chosen ?? { from: undefined, to: undefined })}
    />
    <section
      class="pane wlist"
      aria-label="Messages"
      style=${{ "--bars": `${width}px` }}
      onMouseOver=${event => {
        const row = rowAt(Number(event.target.closest?.("[aria-rowindex]")?.getAttribute("aria-rowindex")) - 1);
        const next = row?.id !== undefined ? `${row.era} ${row.id}` : null;
        if (next !== store.get().lit) store.set({ lit: next });
      }}
      onMouseLeave=${() => store.set({ lit: null })}
    >
      <${Head} frame=${frame} width=${width} gap=${gap} />
      ${
        rows === 0
          ? html`<${NothingHere} query=${query} messages=${messages} />`
          : html`<${VirtualList}
              label="Messages"
              columns="10"
              count=${rows ?? 0}
              height=${HEIGHT}
              rowClass=${index => `wrow${isLit(rowAt(index)) ? " lit" : ""}`}
              listRef=${listRef}
              row=${index => {
                const row = rowAt(index);
                return html`<${Row} ...${{ row, frame, width }} ticked=${ticked.has(row?.seq)} onTick=${tick} />`;
              }}
              selected=${selected?.index}
              onSelect=${select}
              onOpen=${onOpen}
              follow
              onRange=${(first, last, from, to) => {
                look(first, last);
                moved(from, to);
              }}
              onAtEnd=${end => {
                if (end) left.current = store.get().rows ?? 0;
                setAtEnd(end);
              }}
            />`
      }
      ${
        ticked.size > 0 &&
        html`<div class="pop wticked" role="status">
          <span>${plural(ticked.size, "call")} ticked</span>
          <${Button} small primary icon="save" keys="T" onClick=${saveTest}>Save as test<//>
          <${Button} small plain onClick=${() => store.set({ ticked: new Set() })}>Untick<//>
        </div>`
      }
      ${fresh > 0 && html`<${Button} small class="wfresh" icon="down" onClick=${toEnd}>${number(fresh)} new<//>`}
    </section>`;
}

function Panel() {
  const rest = useStore(app, state => state.route.rest);
  const era = useStore(app, state => state.era);
  const selected = useStore(store, state => state.selected),
    open = useStore(store, state => state.open);
  const filterRef = useRef(null),
    listRef = useRef(null),
    before = useRef(era);
  useEffect(() => {
    follow();
    return unfollow;
  }, []);
  useEffect(() => {
    show(rest);
  }, [rest]);
  useEffect(() => {
    const { text } = store.get();
    // The era switch of the page also switches a filter by era.
    if (before.current && before.current !== era && /\bera:\w+/.test(text))
      setText(text.replace(/\bera:\w+/, `era:${era}`));
    before.current = era;
  }, [era]);
  const close = () => {
    store.set({ open: false });
    listRef.current?.focus();
  };
  const copy = async () => {
    const seq = store.get().selected?.seq;
    if (seq == null) return false;
    const { body } = await ask("wire.message", { seq });
    if (await copyText(typeof body === "string" ? body : JSON.stringify(body, null, 2))) toast("Copied as JSON");
    return true;
  };
  const focus = () => {
    filterRef.current?.focus();
    filterRef.current?.select();
  };
  const step = by => {
    if (document.activeElement === listRef.current) return false;
    listRef.current?.focus();
    const { selected: at, rows } = store.get();
    if (rows) select(Math.max(0, Math.min(rows - 1, (at?.index ?? (by > 0 ? -1 : rows)) + by)));
    return true;
  };
  const tickRow = () => {
    const row = rowAt(store.get().selected?.index);
    if (!canTick(row)) return false;
    tick(row.seq);
    return true;
  };
  const writeTest = () => {
    if (!store.get().ticked.size) return false;
    saveTest();
    return true;
  };
  useKeys({
    "/": focus,
    "ctrl+f": focus,
    p: pause,
    c: copy,
    x: tickRow,
    t: writeTest,
    j: () => step(1),
    k: () => step(-1),
  });
  const shown = open && selected?.seq != null;
  return html`<${Stacked} class=${`p-wire${shown ? " has-drawer" : ""}`} title="Wire"
    ><${TopBar} filterRef=${filterRef} />
    <${Timeline} listRef=${listRef} onOpen=${() => store.set({ open: true })} />
    ${shown && html`<${MessageDrawer} seq=${selected.seq} onClose=${close} onShow=${showMessage} />`}<//
  >`;
}

export const wire = {
  id: "wire",
  title: "Wire",
  group: "Protocol",
  icon: "wire",
  key: "w",
  Panel,
  start,
  keys: [
    ["P", "pause the timeline"],
    ["/", "filter"],
    ["C", "copy the row as JSON"],
    ["X", "tick the call for a test"],
    ["T", "save the ticked calls as a test"],
    ["Enter", "open the message"],
    ["Esc", "close the message"],
  ],
  count: () => useStore(app, state => state.status.messages),
  finds: async words => {
    if (words.length < 2) return [];
    const { problem } = await ask("wire.filter", { filter: words });
    if (problem) return [];
    const { rows } = await ask("wire.rows", { filter: words, stop: 8 });
    return rows.map(row => ({
      title: `${row.method} ${row.about ?? ""}`,
      hint: "message",
      icon: "wire",
      mono: true,
      run: () => {
        location.hash = `#wire/${row.seq}`;
      },
    }));
  },
};
