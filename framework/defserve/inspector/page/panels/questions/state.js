// What waits, what is over, what stands. Drafts of answers are kept until their question is over.
import { ask, on, onOpen } from "../../socket.js";
import { createStore } from "../../store.js";

const MOST_PAST = 100;

export const store = createStore({
  past: [], // newest first
  roots: [],
  model: { on: false, rules: [] },
  drafts: {}, // question id → what was typed
  error: null,
});

export const WORDS = {
  form: "form",
  url: "page to open",
  sampling: "model",
  confirmation: "confirmation",
  permission: "permission",
};
export const ICONS = { form: "question", url: "link", sampling: "chat", confirmation: "shield", permission: "key" };

export const draft = (id, change) =>
  store.set(state => ({ drafts: { ...state.drafts, [id]: { ...state.drafts[id], ...change } } }));

async function load() {
  try {
    store.set({ ...(await ask("questions.past")), error: null });
  } catch (error) {
    store.set({ error });
  }
}

export function start() {
  onOpen(load);
  on("standing", told => store.set(told));
  on("question.over", over =>
    store.set(state => {
      const { [over.id]: _, ...drafts } = state.drafts;
      return { drafts, past: [over, ...state.past.filter(each => each.id !== over.id)].slice(0, MOST_PAST) };
    }),
  );
}
