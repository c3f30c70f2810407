// What the frame shows of a sign-in: a banner while it is under way or has failed, and who is signed in.
import { html } from "./vendor/preact.js";
import { ask } from "./socket.js";
import { app, useStore } from "./store.js";
import { Button, Copy } from "./parts/controls.js";
import { Menu } from "./parts/layers.js";
import { Note } from "./parts/notes.js";
import { isUnderWay, learnAccount, opens, signIn, signOut } from "./parts/signing.js";

const again = ({ scopes }) => html`<${Button} small icon="key" onClick=${() => signIn(scopes)}>Sign in again<//>`;
const close = () => app.set(({ account }) => ({ account: { ...account, state: "idle" } }));
const host = address => {
  try {
    return new URL(address).host;
  } catch {
    return address;
  }
};
const KEPT = "What you had before still counts.";

export const showsSignIn = account => isUnderWay(account) || ["failed", "cancelled"].includes(account.state);

export function SignInBanner() {
  const account = useStore(app, state => state.account);
  if (isUnderWay(account)) {
    const cancel = html`<${Button}
      small
      icon="stop"
      onClick=${() => ask("account.cancel").then(told => learnAccount(told))}
      >Cancel<//
    >`;
    if (!opens(account.address))
      return html`<${Note}
        icon="spinner"
        role="status"
        fact="Looking for the page to sign in at."
        actions=${cancel}
      />`;
    return html`<${Note}
      icon="spinner"
      role="status"
      fact=${`Waiting for you to sign in at ${host(account.address)}.`}
      actions=${html`<a class="btn sm" href=${account.address} target="_blank" rel="noopener noreferrer"
          >Open the page</a
        >
        <${Copy} text=${account.address} label="Copy its address">Copy its address<//>${cancel}`}
      >It opens in another tab, in a browser of the machine where the inspector runs. This page continues by itself
      afterwards.<//
    >`;
  }
  const actions = html`${again(account)}<${Button} small plain onClick=${close}>Close<//>`;
  if (account.state === "cancelled")
    return html`<${Note} tone="warn" role="status" fact="The sign-in was cancelled." actions=${actions}
      >${account.kept ? KEPT : ""}<//
    >`;
  const [first, ...rest] = String(account.message).split("\n");
  return html`<${Note}
    tone="bad"
    role="alert"
    fact=${account.kept ? "The sign-in failed." : "You are not signed in."}
    actions=${actions}
    >${first}${/[.!?]$/.test(first) ? "" : "."} ${account.kept ? KEPT : ""}
    ${rest.length > 0 && html`<pre class="wraps">${rest.join("\n")}</pre>`}${
      account.fix && html`<p class="fix"><b>fix:</b> ${account.fix}</p>`
    }<//
  >`;
}

export function SignedIn() {
  const kept = useStore(app, state => state.account.kept);
  if (!kept) return null;
  const words = `Signed in at ${host(kept.issuer)}${kept.scopes.length > 0 ? `, with ${kept.scopes.join(", ")}` : ""}`;
  return html`<${Menu}
    icon="key"
    plain
    label="Sign-in"
    title=${words}
    aria-label=${words}
    items=${[["Sign out", signOut]]}
    ><span class="no-m">Signed in</span><//
  >`;
}
