// The buttons that begin and end a sign-in to the server. The host side does the rest; no token comes here.
import { html } from "../vendor/preact.js";
import { ask } from "../socket.js";
import { app, toast, useStore } from "../store.js";
import { Button } from "./controls.js";

export const isUnderWay = account => ["starting", "waiting"].includes(account.state);

// An address of a peer: nothing else may ever be opened.
export const opens = address => /^https?:\/\//.test(address ?? "");

// `isNews`: not what a page is told first.
export function learnAccount(account, isNews = true) {
  if (isNews && account.state === "done" && app.get().account.state !== "done") toast("You are signed in.");
  app.set(state => ({
    account: { ...account, doneAt: account.state !== "done" ? 0 : state.account.doneAt || Date.now() },
  }));
}

// Only from a click: the tab is opened at once, or the browser would block it. It does not learn who opened it.
export async function signIn(scopes) {
  const tab = window.open("about:blank", "_blank");
  if (tab) {
    tab.document.title = "Looking for the page to sign in at…";
    tab.document.body?.append(tab.document.title);
    tab.opener = null;
  }
  try {
    const told = await ask("account.sign_in", { scopes });
    learnAccount(told);
    if (told.state === "waiting" && opens(told.address)) tab?.location.replace(told.address);
    else tab?.close();
  } catch (error) {
    tab?.close();
    toast(error.message, "bad");
  }
}

export async function signOut() {
  try {
    const { note } = await ask("account.sign_out");
    toast(
      note ? `You are signed out here. ${note}` : "You are signed out. The tokens are revoked and forgotten.",
      note ? "bad" : "",
    );
  } catch (error) {
    toast(error.message, "bad");
  }
}

// Offered beside an error that a sign-in may help against. Whether to try again is up to the person.
export function SignInButton({ error, primary }) {
  const { target, account } = useStore(app);
  const scopes = error.signIn ?? error.sign_in;
  if (!scopes || !target.signs_in) return null;
  if (error.at < account.doneAt) return html`<span role="status">You have signed in since.</span>`;
  return html`<${Button}
    small
    icon="key"
    primary=${primary}
    busy=${isUnderWay(account)}
    reason=${isUnderWay(account) ? "A sign-in is under way." : null}
    onClick=${() => signIn(scopes)}
    >${scopes.length > 0 ? `Sign in with more rights (${scopes.join(", ")})` : "Sign in"}<//
  >`;
}
