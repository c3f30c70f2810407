// The layout of the checkpoint tree, checked with trees of every shape: what is said about rows, lanes and folds.
import("/panels/state/lanes.js").then(({ layout, MAX_LANES }) => {
  const wrong = [];
  let seed = 7;
  const random = most => (seed = (seed * 1103515245 + 12345) % 2147483648) % most;
  for (let round = 0; round < 300; round++) {
    const count = 1 + random(120), parents = new Int32Array(count).fill(-1);
    for (let at = 1; at < count; at++) parents[at] = random(40) ? at - 1 - random(Math.min(at, 1 + random(5))) : -1;
    const head = random(count), keep = [random(count), random(count)];
    const made = layout({ parents, head, keep });
    const say = text => wrong.push(`round ${round}: ${text}`);
    let shown = 0;
    for (let row = 0; row < made.count; row++) {
      shown += made.folded[row] || 1;
      if (made.parentRow[row] >= 0 && made.parentRow[row] <= row) say("a parent is not below its child");
      if (made.folded[row] && (made.at[row] === head || keep.includes(made.at[row]))) say("something to keep is folded");
      if (made.lane[row] === 0 && made.line[row] !== 0) say("lane 0 is not the head's line alone");
      if (made.lane[row] > MAX_LANES) say("too many lanes");
    }
    if (shown !== count) say(`${shown} of ${count} are shown`);
    // Two lines never stand in one lane at the same row, but for the shared last lane.
    const spans = new Map();
    for (let row = 0; row < made.count; row++) {
      const line = made.line[row], span = spans.get(line) ?? [row, row, made.lane[row]];
      span[1] = Math.max(row, made.parentRow[row]);
      spans.set(line, span);
    }
    const all = [...spans.values()];
    for (const one of all) for (const other of all) {
      if (one !== other && one[2] === other[2] && one[2] < MAX_LANES && one[0] <= other[0] && other[0] < one[1]) say("two lines in one lane");
    }
    const only = layout({ parents, head, headOnly: true });
    if (only.branches !== 1) say("another branch with the head only");
  }
  // A long line folds to two, a fold, and two at each end; it opens a hundred at a time.
  const line = Int32Array.from({ length: 300 }, (_, at) => at - 1);
  const folded = layout({ parents: line, head: 299 });
  const opened = layout({ parents: line, head: 299, open: [[folded.last[3], 100]] });
  const counts = `${folded.count} ${folded.folded[3]} ${opened.count} ${Math.max(...opened.folded)}`;
  if (counts !== "7 294 107 194") wrong.push(counts);
  return wrong.join("\n") || "right";
})
