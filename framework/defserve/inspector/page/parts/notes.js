// What is said where it belongs: facts, errors with their fix, nothing to show, not here yet.
import { html, useEffect, useState } from "../vendor/preact.js";
import { Button, Copy } from "./controls.js";
import { Icon } from "./icons.js";
import { SignInButton } from "./signing.js";

const ICONS = { bad: "warning", warn: "warning", ok: "check" };

// A bold `fact`, the detail as children, at most two `actions`.
export const Note = ({ tone = "", icon, fact, actions, children, role }) =>
  html`<div class=${`note ${tone}`} role=${role}>
    <${Icon} name=${icon ?? ICONS[tone] ?? "question"} />
    <div class="grow">
      ${fact && html`<b>${fact}</b>`} ${children}${actions && html`<div class="row acts">${actions}</div>`}
    </div>
  </div>`;

// An error of the host or a server: a Failure, or `{ message, fix, code, data }`. Never cut.
export function ErrorNote({ error, fact, onRetry, actions, detail }) {
  const [first, ...rest] = String(error.message ?? error).split("\n");
  const text = error.fix ? `${error.message}\nfix: ${error.fix}` : String(error.message ?? error);
  return html`<${Note}
    tone="bad"
    role="alert"
    fact=${fact ?? sentence(first)}
    actions=${html`${error.signIn && html`<${SignInButton} error=${error} />`}${
        onRetry && html`<${Button} small onClick=${onRetry}>Try again<//>`
      }${actions}<${Copy} text=${text}>Copy<//>`}
  >
    ${fact && html` ${sentence(first)}`}${rest.length > 0 && html`<pre class="wraps">${rest.join("\n")}</pre>`}
    ${error.fix && html`<p class="fix"><b>fix:</b> ${error.fix}</p>`}
    ${
      (error.code != null || detail) &&
      html`<p class="tiny dim">
        ${[error.code != null && error.code !== -32603 && `code ${error.code}`, detail].filter(Boolean).join(", ")}
      </p>`
    }<//
  >`;
}

const sentence = text => (/[.!?:…]$/.test(text) ? text : text + ".");

// One sentence, and one way on.
export const Empty = ({ icon, title, children, action }) =>
  html`<div class="empty">
    <${Icon} name=${icon} /><b>${title}</b>${children && html`<p>${children}</p>`}${action}
  </div>`;

// Grey bars after 200 ms, so that nothing flickers.
export function Loading({ rows = 3 }) {
  const [shown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), 200);
    return () => clearTimeout(timer);
  }, []);
  return html`<div class="loading" role="status" aria-label="Loading">
    ${
      shown &&
      Array.from(
        { length: rows },
        (_, row) =>
          html`<div class="row"><span class="skel disc"></span><span class=${`skel w${row % 3}`}></span></div>`,
      )
    }
  </div>`;
}
