// What waits for the person. Confirmations and permissions are dialogs, one after the other; the rest is for its panel.
import { html } from "./vendor/preact.js";
import { ask, on } from "./socket.js";
import { app, toast, useStore } from "./store.js";
import { Button } from "./parts/controls.js";
import { Mark } from "./parts/icons.js";
import { Json } from "./parts/json.js";
import { Dialog } from "./parts/layers.js";
import { useTicks } from "./parts/ticks.js";
import { age, cut } from "./format.js";

export const DIALOGS = ["confirmation", "permission", "view"];

const texts = content =>
  [content]
    .flat()
    .map(block => (typeof block === "string" ? block : (block?.text ?? "")))
    .filter(Boolean)
    .join("\n");

// What a question is about, in one line.
export function titleOf(question) {
  const { kind, message, params, tool, permission } = question;
  if (kind === "sampling") return texts(params?.messages?.at?.(-1)?.content) || "An answer of your model";
  if (kind === "confirmation") return `Run ${tool}`;
  if (kind === "view")
    return question.url
      ? `Open ${question.url}`
      : question.reads
        ? `A view reads ${question.reads}`
        : question.saves
          ? `A view saves ${question.saves.join(", ")}`
          : `A view calls ${question.calls}`;
  if (kind === "permission") return `Grant ${permission}`;
  return message || "A question";
}

export function startQuestions() {
  on("question", question => {
    // The first facts of a page may have it already.
    app.set(state => ({ questions: [...state.questions.filter(each => each.id !== question.id), question] }));
    if (DIALOGS.includes(question.kind) || app.get().route.panel === "questions") return;
    toast(`The server asks: ${cut(titleOf(question).split("\n")[0], 80)}`, "asks");
  });
  on("question.over", ({ id }) => app.set(state => ({ questions: state.questions.filter(each => each.id !== id) })));
}

export const answer = (question, given) => ask("questions.answer", { question: question.id, answer: given });

// The questions of other kinds, for the panel that shows them.
export const useOpenQuestions = () =>
  useStore(app, state => state.questions).filter(each => !DIALOGS.includes(each.kind));

export function QuestionDialogs() {
  const waiting = useStore(app, state => state.questions).filter(each => DIALOGS.includes(each.kind));
  const [question] = waiting;
  if (!question) return null;
  const queue = waiting.length > 1 ? `1 of ${waiting.length}` : "";
  const Kind = { confirmation: Confirmation, permission: Permission, view: ViewWish }[question.kind];
  return html`<${Kind} key=${question.id} question=${question} queue=${queue} />`;
}

// When it was asked, and how long the server still waits, if it says so.
export function useSince({ since, until }) {
  useTicks();
  const left = until && until - Date.now() / 1000;
  const waits = left > 0 ? ` ${age(0, left)} left to answer.` : " The server no longer waits.";
  return `Asked ${age(since)} ago.${until ? waits : ""}`;
}

function Confirmation({ question, queue }) {
  const { tool, arguments: given, security = {} } = question;
  const since = useSince(question);
  const deny = () => answer(question, { yes: false });
  return html`<${Dialog}
    role="alertdialog"
    title=${`Let this page run ${tool}?`}
    icon=${html`<${Mark} risk=${security.risk_level} />`}
    onClose=${deny}
    foot=${html`<span class="grow tiny dim">${[queue, since].filter(Boolean).join(", ")}</span
      ><${Button} onClick=${deny} data-first="" keys="Esc">Deny<//>
      <${Button} danger onClick=${() => answer(question, { yes: true })}>Allow once<//>`}
  >
    <dl class="kv">
      <dt>tool</dt>
      <dd class="mono">${tool}</dd>
      <dt>mark</dt>
      <dd><${Mark} risk=${security.risk_level} word /></dd>
      ${
        security.permissions_required?.length > 0 &&
        html`<dt>needs</dt>
          <dd>${security.permissions_required.join(", ")}</dd>`
      }
      ${
        security.side_effects?.length > 0 &&
        html`<dt>effects</dt>
          <dd>${security.side_effects.join(", ")}</dd>`
      }
      ${
        security.validator &&
        security.validator !== "none" &&
        html`<dt>guard</dt>
          <dd>${security.validator}</dd>`
      }
      <dt>era</dt>
      <dd>${question.era}</dd>
      <dt>arguments</dt>
      <dd class="across"><${Json} value=${given} label="Arguments" whole /></dd></dl
  ><//>`;
}

// A view asks for something that has an effect.
function ViewWish({ question, queue }) {
  const { tool, uri, calls, reads, saves, url, arguments: given } = question;
  const since = useSince(question);
  const deny = () => answer(question, { yes: false }),
    allow = always => answer(question, { yes: true, always });
  return html`<${Dialog}
    role="alertdialog"
    title=${
      url
        ? "Open this address?"
        : reads
          ? "Let the view read from another server?"
          : saves
            ? "Save what the view has made?"
            : `Let the view call ${calls}?`
    }
    onClose=${deny}
    foot=${html`<span class="grow tiny dim">${[queue, since].filter(Boolean).join(", ")}</span
      ><${Button} onClick=${deny} data-first="" keys="Esc">Deny<//>${
        url
          ? html`<a class="btn" href=${url} target="_blank" rel="noopener noreferrer" onClick=${() => allow(false)}
              >Open it</a
            >`
          : html`${calls && html`<${Button} onClick=${() => allow(true)}>Allow while it is shown<//>`}<${Button}
                primary
                onClick=${() => allow(false)}
                >Allow once<//
              >`
      }`}
  >
    <dl class="kv">
      <dt>view</dt>
      <dd class="mono wraps">${uri}</dd>
      <dt>shown by</dt>
      <dd class="mono">${tool}</dd>
      ${
        url
          ? html`<dt>address</dt>
              <dd class="mono wraps">${url}</dd>`
          : reads
            ? html`<dt>resource</dt>
                <dd class="mono wraps">${reads}</dd>`
            : saves
              ? html`<dt>files</dt>
                  <dd class="mono wraps">${saves.join(", ")}</dd>`
              : html`<dt>tool</dt>
                  <dd class="mono">${calls}</dd>
                  <dt>arguments</dt>
                  <dd class="across"><${Json} value=${given} label="Arguments" whole /></dd>`
      }
      <dt>era</dt>
      <dd>${question.era}</dd>
    </dl><//
  >`;
}

function Permission({ question, queue }) {
  const since = useSince(question);
  const decide = decision => answer(question, { decision });
  return html`<${Dialog}
    role="alertdialog"
    title=${`Grant ${question.permission} to ${question.server}?`}
    icon=${html`<${Mark} risk=${question.risk} />`}
    onClose=${() => decide("denied")}
    foot=${html`<span class="grow tiny dim">${[queue, since].filter(Boolean).join(", ")}</span
      ><${Button} onClick=${() => decide("denied")} data-first="" keys="Esc">Deny<//>
      <${Button} primary onClick=${() => decide("approved")}>Grant<//>`}
  >
    <p>A call needs it. The grant holds until the inspector ends.</p>
    <dl class="kv">
      ${
        question.tool &&
        html`<dt>tool</dt>
          <dd class="mono">${question.tool}</dd>`
      }
      <dt>permission</dt>
      <dd class="mono">${question.permission}</dd>
      <dt>risk</dt>
      <dd><${Mark} risk=${question.risk} word /></dd>
      <dt>era</dt>
      <dd>${question.era}</dd>
      ${
        question.tool &&
        html`<dt>arguments</dt>
          <dd class="across"><${Json} value=${question.arguments} label="Arguments" whole /></dd>`
      }
    </dl><//
  >`;
}
