// Messages as a model reads them: who says it, then each content block.
import { html } from "../vendor/preact.js";
import { Block } from "./content.js";

const WHO = { __proto__: null, user: "User", assistant: "Assistant", system: "System" };

export function Messages({ system, messages }) {
  return html`<ol class="messages" aria-label="Messages">
    ${
      system &&
      html`<li class="message system">
        <b class="who">System</b>
        <div class="pre">${String(system)}</div>
      </li>`
    }
    ${(Array.isArray(messages) ? messages : []).map(
      (message, at) =>
        html`<li key=${at} class=${`message ${message?.role === "assistant" ? "assistant" : "user"}`}>
          <b class="who">${WHO[message?.role] ?? String(message?.role ?? "?")}</b>
          <div class="stream">
            ${[message?.content]
              .flat()
              .map((block, index) =>
                block?.type === "text" && String(block.text ?? "").length < 400
                  ? html`<div key=${index} class="pre">${String(block.text ?? "")}</div>`
                  : html`<${Block} key=${index} block=${block} />`,
              )}
          </div>
        </li>`,
    )}
  </ol>`;
}
