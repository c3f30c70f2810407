// Questions: what servers ask the person, one queue for both eras, and the answers that stand.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { titleOf, useOpenQuestions } from "../questions.js";
import { age, clock, duration } from "../format.js";
import { useKeys } from "../keys.js";
import { app, go, useStore } from "../store.js";
import { Button, Chip } from "../parts/controls.js";
import { Icon } from "../parts/icons.js";
import { Json } from "../parts/json.js";
import { List } from "../parts/lists.js";
import { Empty, ErrorNote } from "../parts/notes.js";
import { Pane, Panes } from "../parts/panes.js";
import { FormQuestion, SamplingQuestion, UrlQuestion } from "./questions/kinds.js";
import { Model, Roots } from "./questions/standing.js";
import { ICONS, WORDS, start, store } from "./questions/state.js";

const KINDS = { form: FormQuestion, url: UrlQuestion, sampling: SamplingQuestion };
const STANDING = { roots: ["Roots", "file", Roots], model: ["Scripted model", "chat", Model] };
const wide = () => innerWidth >= 720;

function useSeconds() {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick(count => count + 1), 1000);
    return () => clearInterval(timer);
  }, []);
}

// How a question ended, in a word and a tone.
function outcome({ outcome: how, by, answer = {} }) {
  if (how !== "answered") return ["warn", "taken back"];
  if (by === "script") return ["ok", "by the script"];
  const word =
    answer.action ??
    answer.decision ??
    (answer.refuse ? "refused" : "yes" in answer ? (answer.yes === true ? "allowed" : "denied") : "answered");
  return (
    {
      decline: ["bad", "declined"],
      cancel: ["warn", "cancelled"],
      accept: ["ok", "answered"],
      refused: ["bad", "refused"],
      denied: ["bad", "denied"],
      approved: ["ok", "granted"],
    }[word] ?? ["ok", word]
  );
}

function Over({ entry }) {
  const { question, answer } = entry;
  return html`<div class="body stream">
    <dl class="kv">
      <dt>asked</dt>
      <dd>${clock(entry.since)}</dd>
      <dt>over</dt>
      <dd>${clock(entry.over)}, after ${duration((entry.over - entry.since) * 1000)}</dd>
      <dt>outcome</dt>
      <dd>${outcome(entry)[1]}</dd>
    </dl>
    ${
      question
        ? html`<div class="part">
              <h3>Question</h3>
              <${Json} value=${question} copy label="Question" />
            </div>
            ${
              answer &&
              html`<div class="part">
                <h3>Answer</h3>
                <${Json} value=${answer} copy label="Answer" />
              </div>`
            }`
        : html`<p class="dim">It is too long to be kept here. Its messages are in the timeline.</p>`
    }
    <div><${Button} small icon="wire" onClick=${() => go("wire", `era:${entry.era}`)}>Show on the wire<//></div>
  </div>`;
}

function Row({ item }) {
  if (item.standing)
    return html`<${Icon} name=${STANDING[item.standing][1]} s /><span class="cut">${STANDING[item.standing][0]}</span
      ><span class="tok">${item.about}</span>`;
  const question = item.question ?? item;
  const [tone, word] = item.outcome ? outcome(item) : ["acc", "waiting"];
  return html`<${Icon} name=${ICONS[item.kind] ?? "question"} s /><span class="cut title"
      >${item.outcome && !item.question ? WORDS[item.kind] : titleOf(question).split("\n")[0]}</span
    ><${Chip} tone=${tone}>${word}<//>
    <span class="d cut"
      >${[WORDS[item.kind] ?? item.kind, item.era, `${age(item.over ?? item.since)} ago`]
        .filter(Boolean)
        .join(", ")}</span
    >`;
}

function Panel() {
  useSeconds();
  const open = useOpenQuestions();
  const { past, roots, model, error } = useStore(store);
  const rest = useStore(app, state => state.route.rest);
  const [view, setView] = useState(rest ? "form" : "list");
  const list = useRef(null);
  const keyOf = item => item.standing ?? String(item.id);
  const standing = [
    { standing: "roots", about: String(roots.length) },
    { standing: "model", about: model.on ? "on" : "off" },
  ];
  const groups = [
    {
      key: "open",
      label: "Waiting",
      head: html`<div class="group"><span class="grow">Waiting</span><span class="num">${open.length}</span></div>`,
      items: open,
    },
    {
      key: "standing",
      label: "Standing answers",
      head: html`<div class="group"><span class="grow">Standing answers</span></div>`,
      items: standing,
    },
    {
      key: "past",
      label: "Over",
      head:
        past.length > 0 &&
        html`<div class="group"><span class="grow">Over</span><span class="num">${past.length}</span></div>`,
      items: past,
    },
  ];
  const waiting = open.find(each => String(each.id) === rest),
    over = past.find(each => String(each.id) === rest);
  // The eye lands on what waits; an answered one leads on to the next.
  const last = useRef(null);
  useEffect(() => {
    const answered = last.current === rest && !waiting && over;
    if (open.length && wide() && ((rest === "" && !location.hash.includes("/")) || answered))
      go("questions", String(open[0].id));
    if (waiting) last.current = rest;
  }, [rest, open.map(keyOf).join(), !!over]);
  useKeys({
    "/": () => {
      list.current?.focus();
    },
  });
  const Standing = STANDING[rest]?.[2],
    Kind = waiting && (KINDS[waiting.kind] ?? null);
  const shown = waiting ?? over;
  const title =
    STANDING[rest]?.[0] ??
    (shown
      ? {
          form: "A form to fill in",
          url: "A page to open",
          sampling: "An answer of your model",
          confirmation: "A confirmation",
          permission: "A permission",
        }[shown.kind]
      : "Questions");
  return html`<${Panes} id="questions" class="p-questions" title="Questions" show=${`show-${view}`}>
    <${Pane} label="Questions" class="t-list"
      ><div class="head">
        <h2 class="grow">Questions</h2>
        ${open.length > 0 && html`<${Chip} tone="solid">${open.length} waiting<//>`}
      </div>
      ${error && html`<div class="pad"><${ErrorNote} error=${error} /></div>`}
      <${List}
        label="Questions"
        id="question"
        listRef=${list}
        groups=${groups}
        keyOf=${keyOf}
        selected=${rest}
        rowClass="tool q"
        onSelect=${id => go("questions", id)}
        onOpen=${() => setView("form")}
        row=${item => html`<${Row} item=${item} />`}
    /><//>
    <${Pane} label=${title === "Questions" ? "Question" : title} class="t-form"
      ><div class="head">
        <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${() => setView("list")} />
        <h2 class="grow cut">${title}</h2>
        ${shown && html`<${Chip} tone="out">${shown.era}<//><span class="tiny dim num">${age(shown.since)} ago</span>`}
      </div>
      ${
        Standing
          ? html`<${Standing} />`
          : Kind
            ? html`<${Kind} key=${rest} question=${waiting} />`
            : over
              ? html`<${Over} entry=${over} />`
              : html`<div class="body">
                  <${Empty}
                    icon="question"
                    title=${open.length ? "Choose a question" : "No questions are open"}
                    action=${html`<${Button}
                      small
                      onClick=${() => {
                        go("questions", "roots");
                        setView("form");
                      }}
                      >Edit the roots<//
                    >`}
                    >What a server asks you or your model while it works appears here. Nothing is answered by itself.<//
                  >
                </div>`
      }
      <div class="vh" role="status" aria-live="polite">
        ${open.length ? `${open.length} ${open.length === 1 ? "question is" : "questions are"} waiting.` : ""}
      </div><//
    ><//
  >`;
}

export const questions = {
  Panel,
  start,
  keys: [["Ctrl Enter", "answer, keep"]],
  count: () => ({ hot: useOpenQuestions().length }),
  finds: words =>
    app
      .get()
      .questions.filter(each => titleOf(each).toLowerCase().includes(words.toLowerCase()))
      .map(each => ({
        title: titleOf(each),
        hint: "question",
        icon: "question",
        run: () => go("questions", String(each.id)),
      })),
};
