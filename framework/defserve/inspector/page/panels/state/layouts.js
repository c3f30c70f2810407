// The layout of a tree, made here or, for a large tree, by a worker. Only the newest wish counts.
import { useEffect, useRef, useState } from "../../vendor/preact.js";
import { layout } from "./lanes.js";

const LARGE = 5000;
let worker = null,
  lastId = 0;
const waiting = new Map();

function byWorker(asked) {
  if (!worker) {
    worker = new Worker("/panels/state/worker.js", { type: "module" });
    worker.onmessage = ({ data: { id, made } }) => {
      waiting.get(id)?.(made);
      waiting.delete(id);
    };
  }
  const id = ++lastId;
  worker.postMessage({ id, asked });
  return new Promise(resolve => waiting.set(id, resolve));
}

// Gives the layout for a version of the tree; the last one until the next is there. `asked` without the parents.
export function useLayout(tree, version, asked, key) {
  const [made, setMade] = useState(null);
  const newest = useRef(0);
  useEffect(() => {
    const turn = ++newest.current;
    const whole = { ...asked, parents: Int32Array.from(tree.parents) };
    if (tree.count < LARGE) setMade({ ...layout(whole), tree, ids: tree.count });
    else
      byWorker(whole).then(done => {
        if (turn === newest.current) setMade({ ...done, tree, ids: whole.parents.length });
      });
  }, [tree, version, key]);
  return made && made.tree === tree ? made : null;
}
