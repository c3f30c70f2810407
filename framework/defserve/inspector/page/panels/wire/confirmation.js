// Asked before something that may change something is sent again.
import { html } from "../../vendor/preact.js";
import { Button } from "../../parts/controls.js";
import { Mark } from "../../parts/icons.js";
import { Dialog } from "../../parts/layers.js";

export function Confirmation({ about, title, words, yes, onYes, onNo }) {
  return html`<${Dialog}
    role="alertdialog"
    title=${title}
    onClose=${onNo}
    icon=${html`<${Mark} risk=${about.mark} />`}
    foot=${html`<span class="grow"></span><${Button} onClick=${onNo} data-first="">Leave it<//
      ><${Button} danger onClick=${onYes}>${yes}<//>`}
  >
    <p>
      ${
        about.tool && about.method === "tools/call"
          ? html`<code>${about.tool}</code> is ${about.mark ? html`marked ${about.mark}` : "not marked"}`
          : html`<code>${about.method}</code> may change something`
      }.${" "}${words}
    </p><//
  >`;
}
