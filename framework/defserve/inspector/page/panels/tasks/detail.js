// The right pane: one started tool, what it asks, how far it is, what it gave.
import { html, useEffect, useState } from "../../vendor/preact.js";
import { bytes, clock, duration, plural } from "../../format.js";
import { useKeys } from "../../keys.js";
import { ask } from "../../socket.js";
import { go, useStore } from "../../store.js";
import { useOpenQuestions } from "../../questions.js";
import { Block, Part, Structured, repeats } from "../../parts/content.js";
import { Button, Chip, Copy } from "../../parts/controls.js";
import { Json } from "../../parts/json.js";
import { ErrorNote, Note } from "../../parts/notes.js";
import { FormQuestion, SamplingQuestion, UrlQuestion } from "../questions/kinds.js";
import { begin, isOver, put, store } from "./state.js";

const KINDS = { form: FormQuestion, url: UrlQuestion, sampling: SamplingQuestion };
const WORDS = {
  starting: ["", "starting"],
  working: ["acc", "working"],
  input_required: ["warn", "asks you"],
  completed: ["ok", "completed"],
  failed: ["bad", "failed"],
  cancelled: ["warn", "cancelled"],
};

export function Status({ task }) {
  const [tone, words] =
    task.status === "completed" && task.failed
      ? ["bad", "completed with an error"]
      : (WORDS[task.status] ?? ["", task.status]);
  return html`<${Chip} tone=${tone}>${words}<//>`;
}

export function useSeconds(active) {
  const [, tick] = useState(0);
  useEffect(() => {
    if (!active) return undefined;
    const timer = setInterval(() => tick(count => count + 1), 500);
    return () => clearInterval(timer);
  }, [active]);
}

const PLAIN = {
  handshake: "A session has no tasks. This is a plain call: its progress is shown, and its answer when it comes.",
  stateless: "The server did not make it a task. It is a plain call.",
};

function Progress({ task }) {
  useSeconds(!isOver(task));
  const passed = ((task.over ?? Date.now() / 1000) - task.since) * 1000;
  const { progress, total } = task.progress ?? {},
    share = total ? Math.min(1, progress / total) : null;
  const words = isOver(task)
    ? ({ completed: "Done", failed: "Failed", cancelled: "Cancelled" }[task.status] ?? task.status)
    : task.message || (task.status === "input_required" ? "Waiting for an answer" : "Working");
  return html`<div class="part">
    <div class="row progress">
      <b class="grow cut" title=${words}>${words}</b
      >${share !== null && !isOver(task) && html`<span class="num dim">${Math.round(share * 100)} %</span>`}<span
        class="num faint"
        >${duration(passed)}</span
      >
    </div>
    ${
      !isOver(task) &&
      html`<svg
        class=${`meter${share === null ? " unknown" : ""}`}
        preserveAspectRatio="none"
        viewBox="0 0 100 6"
        role="progressbar"
        aria-label="Progress"
        aria-valuenow=${share === null ? null : Math.round(share * 100)}
        aria-valuemin="0"
        aria-valuemax="100"
      >
        <rect width=${share === null ? 30 : share * 100} height="6" />
      </svg>`
    }
  </div>`;
}

const left = ({ created, since, ttl }) => (Date.parse(created) || since * 1000) + ttl - Date.now();
const BY = { notices: "the server tells each change", polls: "it is asked for" };

function Facts({ task }) {
  const stays = task.ttl !== null && left(task);
  return html`<dl class="kv">
    ${
      task.id &&
      html`<dt>id</dt>
        <dd class="row"><code class="mono cut">${task.id}</code><${Copy} text=${task.id} label="Copy the id" /></dd>`
    }
    <dt>era</dt>
    <dd>${task.era}</dd>
    ${
      task.kind === "task" &&
      html`${
          task.by &&
          html`<dt>followed</dt>
            <dd>${BY[task.by]}</dd>`
        }
        <dt>poll interval</dt>
        <dd class="num">${task.poll === null ? "not said" : duration(task.poll)}</dd>
        <dt>kept for</dt>
        <dd class="num">
          ${task.ttl === null ? "ever" : `${duration(task.ttl)} (ttl)`}${
            stays && html`<span class="faint"> ${stays > 0 ? `${duration(stays)} left` : "it may be gone"}</span>`
          }
        </dd>
        ${
          task.created &&
          html`<dt>created</dt>
            <dd class="num">${clock(Date.parse(task.created) / 1000)}</dd>`
        }${
          task.updated &&
          html`<dt>updated</dt>
            <dd class="num">${clock(Date.parse(task.updated) / 1000)}</dd>`
        }`
    }
  </dl>`;
}

function Result({ whole }) {
  const { result, size, status } = whole;
  if (status !== "completed") return null;
  if (!result)
    return (
      size > 0 && html`<p class="dim">The result has ${bytes(size)} and is not kept here. The timeline has it.</p>`
    );
  const content = Array.isArray(result.content) ? result.content : [],
    structured = result.structuredContent;
  return html`${
      result.isError === true &&
      html`<${Note} tone="bad" fact="The tool failed.">A task that completed may still have an error as its result.<//>`
    }
    ${structured !== undefined && html`<${Structured} value=${structured} />`}${content
      .filter(block => !repeats(block, structured))
      .map((block, at) => html`<${Block} key=${at} block=${block} />`)}
    <details>
      <summary>Whole result</summary>
      <${Json} value=${result} copy label="Whole result" />
    </details>`;
}

const Steps = ({ steps }) =>
  steps.length > 0 &&
  html`<${Part} title="Steps" about=${plural(steps.length, "step")}
    ><ol class="steps">
      ${steps.map(
        (step, at) =>
          html`<li key=${at}>
            <span class="num faint">${clock(step.at)}</span><${Status} task=${step} /><span class="wraps"
              >${step.message}</span
            >
          </li>`,
      )}
    </ol><//
  >`;

export function Detail({ task, onBack, onAgain }) {
  const whole = useStore(store, state => state.whole),
    mine = whole?.task === task.task ? whole : null;
  const asked = useOpenQuestions().filter(question => question.task === task.task && KINDS[question.kind]);
  const [trouble, setTrouble] = useState(null);
  useEffect(() => setTrouble(null), [task.task]);
  const act = verb => ask(verb, { task: task.task }).then(put, setTrouble);
  const over = isOver(task),
    again = mine?.arguments && task.tool;
  useKeys({
    r: () => {
      if (over) return false;
      act("tasks.refresh");
      return true;
    },
  });
  return html`<div class="head">
      <${Button} plain icon="left" class="only-m" label="Back to the list" onClick=${onBack} />
      <h2 class="mono grow cut toolname">${task.tool || "a task of others"}</h2>
      <${Status} task=${task} />
    </div>
    <div class="body stream">
      <${Progress}
        task=${task}
      />${task.kind === "plain" && html`<${Note} icon="question" fact="No task.">${PLAIN[task.era]}<//>`}
      ${trouble && html`<${ErrorNote} error=${trouble} />`}${task.error && html`<${ErrorNote} error=${task.error} />`}
      ${asked.map(question => {
        const Kind = KINDS[question.kind];
        return html`<section class="card question" key=${question.id} aria-label="Question of the task">
          <${Kind} question=${question} />
        </section>`;
      })}
      ${mine && html`<${Result} whole=${mine} />`}<${Facts} task=${task} />${
        mine?.arguments &&
        Object.keys(mine.arguments).length > 0 &&
        html`<${Part} title="Arguments"><${Json} value=${mine.arguments} label="Arguments" /><//>`
      }${mine && html`<${Steps} steps=${mine.steps} />`}
    </div>
    <div class="bar">
      ${
        !over &&
        html`<${Button} icon="stop" onClick=${() => act("tasks.cancel")}>Cancel<//>${
            task.kind === "task" &&
            html`<${Button} icon="repeat" keys="R" onClick=${() => act("tasks.refresh")}>Ask now<//>`
          }`
      }
      ${
        over &&
        again &&
        html`<${Button}
          icon="repeat"
          onClick=${() => begin(task.era, task.tool, mine.arguments).then(onAgain, setTrouble)}
          >Start again<//
        >`
      }<span class="grow"></span
      ><${Button}
        plain
        icon="wire"
        class="no-m"
        onClick=${() => go("wire", task.kind === "task" ? "method:tasks" : `tool:${task.tool}`)}
        >Show on the wire<//
      >
    </div>
    <div class="vh" role="status" aria-live="polite">
      ${over ? `${task.tool}: ${task.status}.` : asked.length ? "The task asks something." : ""}
    </div>`;
}
