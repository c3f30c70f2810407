// State: the tree of checkpoints of a feature set, what lies between two of them, rolling back and branching.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { ask, on } from "../socket.js";
import { app, connection, createStore, go, useStore } from "../store.js";
import { useKeys } from "../keys.js";
import { number, plural, quoted } from "../format.js";
import { Button, Copy, copyText, Search, Segments } from "../parts/controls.js";
import { Empty, ErrorNote, Loading, Note } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { Difference, MODES } from "./state/difference.js";
import { geometry } from "./state/drawing.js";
import { Graph } from "./state/graph.js";
import { useLayout } from "./state/layouts.js";
import { Colours, Tree } from "./state/model.js";

const SHOWN = [
  [false, "All branches"],
  [true, "Head only"],
];
const NOT_KEPT = -32005;
const AT_ONCE = 100;
const UNFOLDED = 100;

// What stays while another panel is in view. `chosen` is a feature set and an owner, "" for the inspector's own tree.
const state = createStore({
  told: null,
  error: null,
  chosen: null,
  headOnly: false,
  mode: "diff",
  marks: {},
  count: 0,
});
let trees = new Map(); // era, set and owner → Tree

const choice = (set, owner) => JSON.stringify([set, owner ?? ""]);
const words = owner =>
  !owner
    ? "this inspector"
    : owner.startsWith("anonymous:everyone")
      ? "everyone"
      : owner.replace(/^anonymous:(session|peer):(.{4}).*/, "$1 $2");

const Head = ({ children }) =>
  html`<div class="head">
    <h2>State</h2>
    ${children}
  </div>`;

function Alone({ children }) {
  return html`<${Panes} id="state" class="p-one" title="State"
    ><${Pane} label="State"><${Head} />${children}<//><//
  >`;
}

function Panel() {
  const era = useStore(app, each => each.era);
  const isOpen = useStore(app, each => each.socket === "open" && connection(each)?.state === "open");
  const since = useStore(app, each => connection(each)?.at);
  const { told, error, chosen } = useStore(state);
  const load = () =>
    ask("state.sets", { era }).then(
      done => state.set({ told: { ...done, era }, error: null }),
      failed => state.set({ error: failed }),
    );
  useEffect(() => {
    if (isOpen) load();
  }, [era, isOpen, since]);
  const tools = html`<${Button} icon="tool" onClick=${() => go("tools")}>Show its tools<//>`;
  if (error && !told)
    return html`<${Alone}
      ><div class="body"><${ErrorNote} error=${error} onRetry=${load} /></div
    ><//>`;
  if (!told || told.era !== era) return html`<${Alone}><${Loading} rows=${6} /><//>`;
  if (told.version === null)
    return html`<${Alone}
      ><${Empty} icon="branch" title="No state" action=${tools}
        >This server does not speak MCPL, so it has no checkpoints.<//
      ><//
    >`;
  if (!told.sets.length) {
    return html`<${Alone}
      ><${Empty} icon="branch" title="No state" action=${tools}
        >${
          told.others
            ? `None of its ${plural(told.others, "feature set")} keeps a state.`
            : "It has no feature set that keeps a state."
        }<//
      ><//
    >`;
  }
  const all = told.sets.flatMap(set =>
    set.trees.map(tree => ({
      set,
      owner: tree.owner ?? "",
      kept: tree.kept,
      own: tree.own,
      key: choice(set.name, tree.owner),
    })),
  );
  const current =
    all.find(each => each.key === chosen) ??
    all.find(each => each.own && each.kept) ??
    all.find(each => each.kept) ??
    all[0];
  return html`<${View} key=${era + current.key} era=${era} all=${all} current=${current} isOpen=${isOpen} />`;
}

// Follows one tree for as long as it is in view.
function useTree(era, current, isOpen) {
  const key = era + current.key;
  const tree = useMemo(() => {
    const found = trees.get(key) ?? new Tree();
    trees = new Map([...trees, [key, found]].slice(-4));
    return found;
  }, [key]);
  const [version, setVersion] = useState(0);
  const [facts, setFacts] = useState(null);
  const [error, setError] = useState(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (!isOpen) return undefined;
    let here = true,
      frame = 0;
    const show = () => {
      frame = 0;
      if (here) setVersion(count => count + 1);
    };
    tree.clear();
    const asked = ask("state.follow", { era, set: current.set.name, owner: current.owner }, part => {
      if (!here) return;
      if (part.facts) {
        setFacts(part.facts);
        return;
      }
      tree.take(part);
      if (part.more) return;
      state.set({ count: tree.count });
      frame ||= requestAnimationFrame(show);
    });
    asked.catch(failed => here && setError(failed));
    setError(null);
    return () => {
      here = false;
      asked.cancel();
    };
  }, [key, isOpen, turn]);
  return { tree, version, facts, error, retry: () => setTurn(turn + 1), redraw: () => setVersion(count => count + 1) };
}

const useNarrow = () => {
  const [narrow, setNarrow] = useState(innerWidth < 720);
  useEffect(() => {
    const look = () => setNarrow(innerWidth < 720);
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, []);
  return narrow;
};

function View({ era, all, current, isOpen }) {
  const { headOnly, mode, marks: allMarks } = useStore(state);
  const { tree, version, facts, error, retry, redraw } = useTree(era, current, isOpen);
  const saved = useStore(app, each => each.target.saved);
  const where = { era, set: current.set.name, owner: current.owner };
  const narrow = useNarrow();
  const [cursor, setCursor] = useState(null);
  const [opened, setOpened] = useState(() => new Map());
  const [text, setText] = useState("");
  const [show, setShow] = useState("");
  const [gone, setGone] = useState(() => new Set());
  const [, tick] = useState(0);
  const search = useRef(null),
    list = useRef(null);
  const colours = useRef(new Colours());
  useEffect(() => {
    // ages go on
    const timer = setInterval(() => tick(count => count + 1), 10000);
    return () => clearInterval(timer);
  }, []);

  // An address such as #state/chk_… leads to that checkpoint.
  const wantedId = useStore(app, each => (each.route.panel === "state" ? each.route.rest : ""));
  const marks = effective(tree, allMarks[era + current.key]);
  const setMarks = next => state.set({ marks: { ...allMarks, [era + current.key]: next } });
  const hits = useMemo(() => tree.find(text), [text, version]);
  const keep = [
    tree.placeOf.get(wantedId),
    tree.placeOf.get(marks.a),
    tree.placeOf.get(marks.b),
    tree.placeOf.get(tree.next),
    ...hits.slice(0, 500),
  ].filter(each => each !== undefined);
  const asked = { head: tree.headPlace, keep, open: [...opened], headOnly };
  const bare = useLayout(tree, version, asked, JSON.stringify(asked));
  const made = useMemo(() => bare && enriched(bare, tree), [bare]);
  const lineColours = useMemo(() => (made ? colours.current.assign(tree, made.ends) : []), [made]);

  // What rows in view changed is asked for when they come into view.
  const wanted = useRef(new Set()),
    timer = useRef(0);
  const onShown = places => {
    for (const at of places) if (tree.changes[at] === null) wanted.current.add(tree.ids[at]);
    if (!wanted.current.size || timer.current) return;
    timer.current = setTimeout(async () => {
      timer.current = 0;
      const ids = [...wanted.current].slice(0, AT_ONCE);
      wanted.current = new Set([...wanted.current].slice(AT_ONCE));
      const found = await ask("state.changes", { ...where, ids }).catch(() => ({}));
      for (const id of ids) {
        const at = tree.placeOf.get(id);
        if (at !== undefined) tree.changes[at] = found[id] ?? "";
      }
      tick(count => count + 1);
      if (wanted.current.size) onShown([]);
    }, 60);
  };
  const cardOf = id => {
    const parent = tree.parents[tree.placeOf.get(id)];
    return ask("state.diff", { ...where, a: parent >= 0 ? tree.ids[parent] : "", b: id });
  };

  useEffect(() => {
    if (wantedId && tree.placeOf.has(wantedId)) {
      setCursor(wantedId);
      focusList();
    }
  }, [wantedId, tree.placeOf.has(wantedId)]);
  const focusList = () => list.current?.focus();
  const toHead = () => {
    if (tree.head === null) return;
    const { height } = geometry(narrow),
      top = (made?.headRow ?? 0) * height,
      box = list.current;
    if (box && (top < box.scrollTop || top + height > box.scrollTop + box.clientHeight)) box.scrollTop = top;
    setCursor(tree.head);
    focusList();
  };
  const mark = (letter, id) =>
    setMarks({
      ...allMarks[era + current.key],
      [letter]: id,
      ...(letter === "a" && id !== marks.a ? { b: null } : {}),
    });
  const others = !current.own && all.some(each => each.own && each.set === current.set);
  const moves = useMoves({ where, others, tree, marks, setMarks, facts, redraw, setGone });
  useKeys({
    "/": () => search.current?.focus(),
    a: () => cursor && mark("a", cursor),
    b: () => cursor && mark("b", cursor),
    h: toHead,
    u: () => moves.ask(),
    c: () => {
      const at = tree.placeOf.get(cursor);
      if (at === undefined) return false;
      copyText(JSON.stringify(tree.row(at), null, 2));
      return true;
    },
    escape: () => {
      if (show) setShow("");
      else return false;
      return true;
    },
  });
  const nextHit = event => {
    if (event.key === "Escape") focusList();
    if (event.key !== "Enter" || !hits.length) return;
    event.preventDefault();
    const at = hits.indexOf(tree.placeOf.get(cursor));
    setCursor(tree.ids[hits[(at + (event.shiftKey ? hits.length - 1 : 1)) % hits.length]]);
  };

  const branches = made && plural(made.branches, made.branches === 1 ? "branch" : "branches", "branches");
  const counted = made ? `${plural(tree.count, "checkpoint")}, ${branches}` : "";
  const setPicker = html`<label class="in pick"
    ><span class="dot k k1"></span><span class="vh">Feature set and owner</span>
    <select class="bare" value=${current.key} onChange=${event => state.set({ chosen: event.target.value })}>
      ${all.map(
        each =>
          html`<option key=${each.key} value=${each.key} selected=${each.key === current.key}>
            ${each.set.name}, ${words(each.owner)}
          </option>`,
      )}
    </select></label
  >`;
  const left = html`<${Pane} label="Checkpoints" class="s-graph"
    ><div class="bar topbar">
      ${setPicker}<span class="dim small num no-m cut counted">${counted}</span><span class="grow no-m"></span>
      <${Segments}
        label="Which branches"
        class="no-m"
        options=${SHOWN}
        value=${headOnly}
        onChange=${value => state.set({ headOnly: value })}
      />
      <span class="no-m find2"
        ><${Search}
          value=${text}
          onInput=${setText}
          placeholder="Find"
          label="Find a checkpoint"
          inputRef=${search}
          onKeyDown=${nextHit}
      /></span>
      <${Button}
        icon="top"
        class="no-m"
        keys="H"
        onClick=${toHead}
        reason=${tree.head === null ? "There is no head yet" : null}
        >Head<//
      >
    </div>
    ${error && html`<div class="pad"><${ErrorNote} error=${error} onRetry=${retry} /></div>`}
    ${
      text &&
      html`<div class="bar tiny dim found" role="status">
        ${hits.length ? `${number(hits.length)} found. Enter goes to the next.` : "Nothing found."}
      </div>`
    }
    ${
      !made
        ? html`<${Loading} rows=${8} />`
        : !tree.count
          ? html`<${Empty}
              icon="branch"
              title="No checkpoint yet"
              action=${html`<${Button} icon="tool" onClick=${() => go("tools")}>Call a tool<//>`}
            >
              Call a tool of ${current.set.name}. Each call that changes the state leaves a checkpoint here.<//
            >`
          : html`<${Graph}
              ...${{ tree, made, marks, cursor, narrow, gone, cardOf, onShown }}
              colours=${lineColours}
              listRef=${list}
              hits=${new Set(text ? hits : [])}
              onCursor=${setCursor}
              onMark=${mark}
              onUnfold=${last => {
                setOpened(new Map(opened).set(last, (opened.get(last) ?? 0) + UNFOLDED));
                focusList();
              }}
            />`
    }
    <div class="bar tiny dim no-m">
      <span class=${`row gap4 ${isOpen && !error ? "ok" : "warn"}`}
        ><span class="dot"></span>${saved ? "Saved" : isOpen && !error ? "Live" : "Not live"}</span
      ><span class="cut">${saved ? "As it was when the session was saved." : "New checkpoints appear at the top."}</span
      ><span class="grow"></span>${
        facts?.store
          ? html`<span class="cut mono">${facts.store}</span>`
          : html`<span class="cut">Only what this inspector saw.</span>`
      }
      ${facts?.keep ? html`<span class="nowrap">${number(tree.count)} of ${number(facts.keep)} kept</span>` : null}
    </div>
    ${
      tree.count > 0 &&
      html`<div class="bar only-m">
        <span class="tiny dim grow"
          ><b>A</b> ${marks.a ? tree.short(marks.a) : "nothing"} to${" "}
          <b>B</b> ${marks.b ? tree.short(marks.b) : "nothing"}</span
        >
        <${Button} after="right" onClick=${() => setShow("show-diff")}>Compare<//>
      </div>`
    }<//
  >`;
  const right = html`<${Pane} label="Difference" class="s-diff"
    ><div class="head">
      <span class="only-m"><${Button} icon="left" plain label="Back to the tree" onClick=${() => setShow("")} /></span>
      <h2>Difference</h2>
      <span class="grow"></span>
      <${Segments}
        label="How it is shown"
        options=${MODES}
        value=${mode}
        onChange=${value => state.set({ mode: value })}
      />
    </div>
    <${Difference}
      tree=${tree}
      where=${where}
      a=${marks.a}
      b=${marks.b}
      mode=${mode}
      onSwap=${() => setMarks({ a: marks.b, b: marks.a })} />
    <${Foot} ...${{ tree, marks, facts, moves, current }}
  /><//>`;
  return html`<${Panes} id="state" class="p-state" title="State" show=${show}>${left}${right}<//>`;
}

// A and B as they count: without a B it is the head, without an A what was before B.
function effective(tree, given = {}) {
  const known = id => (id != null && tree.placeOf.has(id) ? id : null);
  const b = known(given.b) ?? (tree.placeOf.has(tree.head) ? tree.head : null);
  const before = b === null ? -1 : tree.parents[tree.placeOf.get(b)];
  return { a: known(given.a) ?? (before >= 0 ? tree.ids[before] : null), b };
}

// The layout, with the rows that are drawn in a way of their own.
function enriched(made, tree) {
  const tips = new Set(),
    lostAt = new Set();
  for (const end of made.ends) tips.add(made.rowOf[end]);
  for (let row = 0; row < made.count; row++) if (tree.parents[made.last[row]] === -2) lostAt.add(row);
  return { ...made, tips, lostAt, headRow: made.rowOf[tree.headPlace] ?? -1 };
}

// Rolling back and branching: what runs, what the server said, and how to take it back.
const SAVED = "This is a saved session: nothing moves";

function useMoves({ where, others, tree, marks, setMarks, facts, redraw, setGone }) {
  const [busy, setBusy] = useState(false);
  const [note, setNote] = useState(null); // { kind, … }
  const target = marks.a;
  const saved = useStore(app, each => each.target.saved);
  const why = saved
    ? SAVED
    : others
      ? "This tree is another caller's. Only that caller can move its head"
      : target === null
        ? "There is nothing before this checkpoint"
        : target === tree.head
          ? "The head is there already"
          : null;
  useEffect(() => {
    setNote(current => (current?.kind === "asks" || current?.kind === "refused" ? null : current));
  }, [target]);
  const rollBack = async id => {
    const before = tree.head;
    setBusy(true);
    setNote(null);
    try {
      const done = await ask("state.rollback", { ...where, checkpoint: id });
      if (done.success) setMarks({ a: id, b: before }); // what was undone stays in view
      setNote(
        done.success
          ? { kind: "moved", to: id, from: before }
          : { kind: "refused", reason: done.reason ?? "The server gives no reason." },
      );
    } catch (error) {
      const isAbsent = error.code === NOT_KEPT;
      if (isAbsent && !where.owner) setGone(places => new Set([...places, tree.placeOf.get(id)]));
      setNote({
        kind: "refused",
        reason:
          isAbsent && where.owner ? `${sentence(error.message)} The tree may be another caller's.` : error.message,
        fix: error.fix,
      });
    } finally {
      setBusy(false);
      redraw();
    }
  };
  const branch = async (id, before = tree.next) => {
    try {
      await ask("state.branch", { ...where, checkpoint: id ?? "" });
      tree.next = id;
      setNote(id === null ? null : { kind: "branches", to: id, from: before });
    } catch (error) {
      setNote({ kind: "refused", reason: error.message, fix: error.fix });
    }
    redraw();
  };
  return {
    busy,
    note,
    why,
    stays: saved ? SAVED : others ? why : null,
    rollBack,
    branch,
    dismiss: () => setNote(null),
    ask: () => {
      if (why || busy) return;
      if (facts?.undoes) setNote({ kind: "asks" });
      else rollBack(target);
    },
  };
}

const sentence = said => (/[.!?…]$/.test(said) ? said : said + ".");

function Foot({ tree, marks, facts, moves, current }) {
  const { note, why, busy, stays } = moves;
  const target = marks.a;
  if (!tree.count) return null;
  const id = each => html`<code>${tree.short(each)}</code>`;
  const { on, back } =
    why || tree.headPlace < 0 ? { on: [], back: [] } : tree.between(tree.placeOf.get(target), tree.headPlace);
  const after = `the ${plural(on.length, "checkpoint")} after it ${on.length === 1 ? "stays" : "stay"}`;
  const left = on.length ? `: ${back.length ? "the head's line stays" : after} as a branch` : "";
  return html`<div class="p12 moves">
    <div role="status" aria-live="polite">
      ${
        note?.kind === "moved" &&
        html`<${Note}
          tone="ok"
          fact=${html`The head is at ${id(note.to)}.`}
          actions=${html`<${Button} small icon="undo" onClick=${() => moves.rollBack(note.from)}>Undo<//>`}
          >It was at ${id(note.from)}.<//
        >`
      }
      ${
        note?.kind === "branches" &&
        html`<${Note}
          tone="ok"
          fact=${html`The inspector's next call starts at ${id(note.to)}.`}
          actions=${html`<${Button} small icon="undo" onClick=${() => moves.branch(note.from, note.to)}>Undo<//>`}
          >The head stays at ${id(tree.head)}.<//
        >`
      }
      ${
        note?.kind === "refused" &&
        html`<${Note} tone="bad" fact=${html`The head stays at ${id(tree.head)}.`}
          >${sentence(note.reason)}${note.fix && html`<p class="fix"><b>fix:</b> ${note.fix}</p>`}<//
        >`
      }
      ${
        note?.kind === "asks" &&
        html`<${Note}
          tone="warn"
          fact=${html`${current.set.name} has an undo of its own.`}
          actions=${html`<${Button} small primary onClick=${() => moves.rollBack(target)}>Roll back<//
            ><${Button} small onClick=${moves.dismiss}>Leave it<//>`}
        >
          It runs first, and may change what lies outside of the state.<//
        >`
      }
    </div>
    ${
      !why &&
      note?.kind !== "asks" &&
      html`<p class="small dim">
        Roll back moves the head from ${id(tree.head)} to ${id(target)}. Nothing is lost${left}.${" "}
        ${
          facts?.undoes
            ? "The server runs its undo first and may refuse."
            : facts?.undoes === false
              ? ""
              : "The server may refuse."
        }
      </p>`
    }
    <div class="row wrap">
      <${Button} primary icon="undo" keys="U" busy=${busy} reason=${why} onClick=${moves.ask}
        >${target ? `Roll back to ${tree.short(target)}` : "Roll back"}<//
      >
      <${Button}
        icon="fork"
        reason=${stays ?? (target ? null : "Choose a checkpoint first")}
        onClick=${() => moves.branch(target)}
        >Branch here<//
      ><span class="grow"></span>
      ${
        marks.b &&
        tree.calls[tree.placeOf.get(marks.b)] &&
        html`<${Button}
          plain
          icon="wire"
          title=${`The call that made ${tree.short(marks.b)}`}
          onClick=${() => go("wire", `checkpoint:${marks.b}`)}
          >Its call<//
        >`
      }
      ${
        facts?.store?.includes("://") &&
        target &&
        html`<span class="no-m"
          ><${Copy} text=${`defserve state rollback ${quoted(facts.store)} ${quoted(target)}`} label="Copy as command"
        /></span>`
      }
    </div>
  </div>`;
}

// The checkpoints of the inspector's own trees, for the sidebar, before the panel was opened.
function countIn({ state: now, era }) {
  if (now !== "open" || state.get().told?.era === era) return;
  const sum = each => each.trees.filter(tree => tree.own).reduce((all, tree) => all + tree.kept, 0);
  ask("state.sets", { era }).then(
    ({ sets }) => state.set({ count: sets.reduce((all, each) => all + sum(each), 0) }),
    () => {},
  );
}

export const statePanel = {
  id: "state",
  title: "State",
  group: "Extensions",
  icon: "branch",
  key: "s",
  keys: [
    ["A, B", "mark the row as A, as B"],
    ["H", "go to the head"],
    ["U", "roll back to A"],
    ["/", "find a checkpoint"],
    ["C", "copy the row as JSON"],
  ],
  count: () => useStore(state, each => each.count),
  // The checkpoints of the tree that was in view last.
  finds: words => {
    const tree = [...trees.values()].at(-1);
    if (!tree || words.trim().length < 2) return [];
    const found = tree.find(words),
      exact = found.filter(at => tree.changes[at]?.includes(words.trim()));
    return [...new Set([...exact, ...found])].slice(0, 5).map(at => ({
      title: `${tree.shorts[at]} ${tree.calls[at] ?? ""}`,
      hint: tree.changes[at] || "checkpoint",
      icon: "branch",
      mono: true,
      run: () => go("state", tree.ids[at]),
    }));
  },
  start: () => {
    on("connection", countIn);
    Object.values(app.get().connections).forEach(countIn);
  },
  Panel,
};
