// The five layers of the latest call, or of the one that waits: which it passed, and which one stopped it.
import { html } from "../../vendor/preact.js";
import { app, useStore } from "../../store.js";
import { Icon } from "../../parts/icons.js";

const LAYERS = ["Access", "Permissions", "Guards", "Confirmation", "Audit"];
// What a refusal is called, by our own side and by servers → the layer it comes from.
const STOPS = {
  access_denied: 0,
  AccessDenied: 0,
  permission_denied: 1,
  PermissionDenied: 1,
  validation_blocked: 2,
  code_safety_violation: 2,
  rejected: 2,
  Rejected: 2,
  ValidationBlocked: 2,
  CodeSafetyViolation: 2,
  confirmation_required: 3,
  not_confirmed: 3,
  NotConfirmed: 3,
  ConfirmationRequired: 3,
  audit_unavailable: 4,
  AuditUnavailable: 4,
};
const ENDS = ["TOOL_EXECUTED", "TOOL_BLOCKED"];

// The newest call that ended, as our own side saw it: its tool, and the index of the layer that stopped it.
function latest(seen) {
  const end = seen.find(each => ENDS.includes(each.event_type) && each.observed_by);
  if (!end) return null;
  const checked = seen.some(
    each => each.trace_id === end.trace_id && ["VALIDATION_FAILED", "CODE_REJECTED"].includes(each.event_type),
  );
  const reason = end.details?.reason ?? end.details?.error;
  return {
    tool: end.target?.tool_name ?? "",
    reason,
    stop: checked ? 2 : (STOPS[reason] ?? null),
    ran: end.event_type === "TOOL_EXECUTED",
  };
}

function lines(call, waiting, log) {
  if (waiting) {
    const needs = waiting.security?.permissions_required ?? [];
    return [
      ["wait", "the server looks when the call comes"],
      ["ok", needs.length ? `${needs.join(", ")} granted` : "it needs none"],
      ["wait", "the server looks when the call comes"],
      ["now", "somebody has to say yes"],
      ["wait", log ? "the server writes it down before it runs" : "no log can be read from here"],
    ];
  }
  const passed = [
    "nobody objected",
    "granted, or none needed",
    "nothing was wrong with the arguments",
    "given, or not needed",
    log ? "in the server's log" : "seen by this inspector; no log of the server can be read",
  ];
  return LAYERS.map((_, at) =>
    call.stop === null || at < call.stop
      ? ["ok", passed[at]]
      : at === call.stop
        ? ["bad", `stopped here: ${call.reason}`]
        : ["wait", "not reached"],
  );
}

const ICONS = { ok: "check", bad: "close", now: "clock", wait: "unmarked" };
const TONES = { ok: "ok", bad: "bad", now: "warn", wait: "faint" };

export function Layers({ seen, log }) {
  const waiting = useStore(app, each => each.questions).find(each => each.kind === "confirmation");
  const call = latest(seen);
  if (!call && !waiting) return null;
  return html`<div class="head">
      <h2 class="nowrap">${waiting ? "Call that waits" : "Latest call"}</h2>
      <code class="cut">${waiting?.tool ?? call.tool}</code>
    </div>
    <ol class="layers">
      ${lines(call, waiting, log).map(
        ([kind, words], at) =>
          html`<li key=${at}>
            <span class=${TONES[kind]}><${Icon} name=${ICONS[kind]} s /></span><b>${LAYERS[at]}</b
            ><span class="dim">${words}</span>
          </li>`,
      )}
    </ol>`;
}
