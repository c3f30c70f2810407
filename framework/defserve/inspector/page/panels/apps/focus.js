// Who has the keyboard. A view can take the focus at any time, and would then read what the person types elsewhere. So
// it may have it only if the last thing the person did was to move the pointer over it, or to enter it with the
// keyboard. Otherwise it is inert. That keeps out the person, not the script of a view: what it takes is taken back at
// once, as for a view that looks for the focus when it begins, and one that goes on is stopped.
import { app } from "../../store.js";
import { DIALOGS } from "../../questions.js";

const MOST_TAKEN = 3;
const isAsked = () => app.get().questions.some(each => DIALOGS.includes(each.kind));

// `around` is the element that holds the frame. `stop` ends the view. Gives a function that ends the guard.
export function guard(around, frame, stop) {
  let before = document.activeElement,
    taken = 0;
  const live = on => {
    frame.inert = !on || isAsked();
  };
  const moved = () => live(true);
  const left = () => {
    if (document.activeElement !== frame) live(false);
  };
  const typed = () => live(false);
  const focused = ({ target }) => {
    if (target === frame) return;
    before = target;
    live(false);
  };
  const taking = () => {
    if (document.activeElement !== frame || !frame.inert) return;
    if (++taken > MOST_TAKEN) stop("It kept taking the keyboard from the page.");
    // Not before the browser is done with giving it away.
    setTimeout(() => {
      before?.blur?.();
      window.focus();
      before?.focus?.();
    });
  };
  frame.inert = true;
  const entered = () => {
    live(true);
    frame.focus();
  };
  const heard = [
    [around, "pointermove", moved],
    [around, "pointerdown", moved],
    [around, "pointerleave", left],
    [window, "keydown", typed],
    [document, "focusin", focused],
    [window, "blur", taking],
    [around, "enter-view", entered],
  ];
  for (const [target, kind, run] of heard) target.addEventListener(kind, run, true);
  const unfollow = app.subscribe(() => {
    if (isAsked() && !frame.inert) live(false);
  });
  return () => {
    unfollow();
    for (const [target, kind, run] of heard) target.removeEventListener(kind, run, true);
  };
}

// The person goes into the view with the keyboard.
export const enter = () => document.querySelector(".framed")?.dispatchEvent(new Event("enter-view"));
