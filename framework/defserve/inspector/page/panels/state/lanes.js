// Lays out a tree of checkpoints: which rows there are, in which lane each stands. Pure, no DOM; linear in checkpoints
// but for the lanes. Checkpoints are places in the order of their making, 0 the oldest.
export const MIN_RUN = 12,
  EDGE = 2,
  MAX_LANES = 8,
  NO_PARENT = -1;

// parents: Int32Array, the place of each parent, below 0 for none. head: a place, or -1. keep: places that are never
// folded (A, B, found, focused). open: oldest place of a fold → how many of it are unfolded, from the top.
// Gives arrays by row, newest first: at (place; of a fold its newest), folded (how many, 0 for a checkpoint), last (the
// oldest of a fold, else at), line, lane, parentRow (-1 for none); rowOf by place, -1 if it is not shown; lanes, how
// many there are; ends, line → the place of its end; hasHead; shared, how many lines share the last lane.
export function layout({ parents, head = -1, keep = [], open = [], headOnly = false }) {
  const count = parents.length;
  const kept = new Set(keep),
    opened = new Map(open);
  const children = new Int32Array(count);
  for (let at = 0; at < count; at++) if (parents[at] >= 0) children[parents[at]]++;

  // 1. Lines. The head's own line first, then one for each other end, newest first, down to where it meets a line.
  const lineOf = new Int32Array(count).fill(-1),
    lines = [];
  const follow = from => {
    const members = [];
    let at = from;
    while (at >= 0 && lineOf[at] < 0) {
      lineOf[at] = lines.length;
      members.push(at);
      at = parents[at];
    }
    lines.push({ members, meets: at });
  };
  if (head >= 0 && head < count) follow(head);
  const hasHead = lines.length === 1;
  if (!(headOnly && hasHead)) for (let at = count - 1; at >= 0; at--) if (lineOf[at] < 0) follow(at);

  // 2. Folds. Runs without forks on one line; a few at each edge stay, so that the eye has something to hold on to.
  const foldOf = new Int32Array(count).fill(-1); // → the newest of its fold
  for (const { members } of lines) {
    let run = [];
    const close = () => {
      if (run.length >= MIN_RUN) {
        let inner = run.slice(EDGE, -EDGE);
        inner = inner.slice(opened.get(inner.at(-1)) ?? 0);
        if (inner.length > 1) for (const at of inner) foldOf[at] = inner[0];
      }
      run = [];
    };
    for (const at of members) {
      const plain = at !== head && !kept.has(at) && parents[at] >= 0 && (headOnly || children[at] === 1);
      if (plain) run.push(at);
      else close();
    }
    close();
  }

  // 3. Rows. A fold stands where its newest checkpoint would.
  const rows = { at: [], folded: [], last: [], line: [], lane: [], parentRow: [] };
  const rowOf = new Int32Array(count).fill(-1);
  for (let at = count - 1; at >= 0; at--) {
    if (lineOf[at] < 0) continue;
    const fold = foldOf[at];
    if (fold >= 0 && fold !== at) {
      const row = (rowOf[at] = rowOf[fold]);
      rows.folded[row]++;
      rows.last[row] = at;
      continue;
    }
    rowOf[at] = rows.at.length;
    rows.at.push(at);
    rows.folded.push(fold === at ? 1 : 0);
    rows.last.push(at);
    rows.line.push(lineOf[at]);
  }

  // 4. Lanes. Lane 0 is the head's line alone; every other takes the lowest that is free where it begins.
  const until = [hasHead ? Infinity : -1],
    laneOf = [];
  lines.forEach(({ members, meets }, index) => {
    if (hasHead && index === 0) {
      laneOf.push(0);
      return;
    }
    const top = rowOf[members[0]];
    const bottom = meets >= 0 ? rowOf[meets] : rowOf[members.at(-1)] + 1;
    let lane = hasHead ? 1 : 0;
    while (lane < MAX_LANES && (until[lane] ?? -1) >= top) lane++;
    until[lane] = Math.max(until[lane] ?? -1, bottom);
    laneOf.push(lane); // MAX_LANES: the shared last lane, drawn grey
  });
  for (let row = 0; row < rows.at.length; row++) {
    const parent = parents[rows.last[row]];
    rows.lane.push(laneOf[rows.line[row]]);
    rows.parentRow.push(parent >= 0 ? rowOf[parent] : -1);
  }
  const typed = Object.fromEntries(Object.entries(rows).map(([name, values]) => [name, Int32Array.from(values)]));
  return {
    ...typed,
    rowOf,
    count: rows.at.length,
    hasHead,
    lanes: Math.min(until.length, MAX_LANES + 1),
    ends: Int32Array.from(lines, line => line.members[0]),
    branches: lines.length,
    shared: laneOf.filter(lane => lane === MAX_LANES).length,
  };
}
