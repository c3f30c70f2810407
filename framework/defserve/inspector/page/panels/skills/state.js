// What was read of skills, by era, skill and path: the newest. A file that is not what was listed has no contents here.
import { ask } from "../../socket.js";
import { createStore } from "../../store.js";

const MOST_READ = 20;

export const reads = createStore({ read: {}, path: {} }); // path: skill → the file in view

export const keyOf = (era, uri, path) => JSON.stringify([era, uri, path]);

const put = (key, change) =>
  reads.set(({ read }) => {
    const { [key]: before, ...rest } = read;
    return {
      read: { ...Object.fromEntries(Object.entries(rest).slice(1 - MOST_READ)), [key]: { ...before, ...change } },
    };
  });

export function read(era, uri, path, again = false) {
  const key = keyOf(era, uri, path),
    began = performance.now();
  reads.set(state => ({ path: { ...state.path, [uri]: path } }));
  if (reads.get().read[key]?.busy || (reads.get().read[key]?.at && !again)) return;
  put(key, { busy: true });
  const done = change => put(key, { busy: false, at: Date.now() / 1000, ms: performance.now() - began, ...change });
  ask("skills.read", { era, uri, path, again }).then(
    file => done({ file, error: null }),
    error => done({ file: null, error }),
  );
}

// A new list: what was read before may be another version.
export const forget = () => reads.set({ read: {} });
