// The panels, in the order of the sidebar. A new panel is one more line here, and one in verbs.py.
// A panel is { id, title, group, icon, key, keys, Panel, count?, finds?, start? }:
//   group   "Server", "Protocol" or "Extensions"        key    the letter after G
//   keys    [key, what it does] pairs, for the table    count  a hook that gives a number, or { hot: number }
//   finds   words => [{ title, hint, icon, run }], for Ctrl K   start  called once, when the page begins
import { statePanel } from "./state.js";
import { tools } from "./tools.js";
import { wire } from "./wire.js";

export const panels = [
  tools,
  wire,
  statePanel,
];

// On a phone, these are the tabs at the bottom, with More as the fifth.
export const PHONE = ["tools", "wire", "state", "live"];
export const GROUPS = ["Server", "Protocol", "Extensions"];
