// The tools that were started and go on, of both eras, and what is known of the one in view.
import { ask, on } from "../../socket.js";
import { app, createStore } from "../../store.js";

const MOST = 100;

export const store = createStore({
  tasks: [], // newest first
  facts: {}, // era → { offered, session }
  whole: null, // the one in view, with its result and steps
  tool: {}, // era → the tool that is chosen in the form
  error: null,
});

export async function load(era) {
  if (!era) return;
  try {
    const { tasks, offered, session } = await ask("tasks.list", { era });
    store.set(state => ({ tasks, facts: { ...state.facts, [era]: { offered, session } }, error: null }));
  } catch (error) {
    store.set({ error });
  }
}

export const put = task =>
  store.set(state => {
    const known = state.tasks.some(each => each.task === task.task);
    return {
      tasks: known
        ? state.tasks.map(each => (each.task === task.task ? task : each))
        : [task, ...state.tasks].slice(0, MOST),
    };
  });

// Fetches a task with its result and its steps.
export function look(number) {
  ask("tasks.show", { task: number }).then(
    whole => {
      put(whole);
      store.set({ whole });
    },
    () => {},
  );
}

export async function begin(era, tool, args) {
  const task = await ask("tasks.start", { era, tool, arguments: args });
  put(task);
  return task.task;
}

export async function follow(era, id) {
  const task = await ask("tasks.resume", { era, taskId: id });
  put(task);
  return task.task;
}

export const forget = () => ask("tasks.forget").then(store.set, () => {});
export const isOver = task => task.over !== null;

export function start() {
  let loaded = "";
  const see = ({ era, connections }) => {
    const told = connections[era],
      key = told?.state === "open" ? `${era} ${told.at}` : "";
    if (key && key !== loaded) {
      loaded = key;
      load(era);
    }
  };
  app.subscribe(see);
  see(app.get());
  on("task", task => {
    put(task);
    const { route } = app.get();
    if (route.panel === "tasks" && route.rest === String(task.task)) look(task.task);
  });
}
