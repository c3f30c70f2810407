// Every text of the page passes here: characters that hide something are shown by their number, and letters that are
// written from right to left turn nothing around but themselves.
import { options } from "../vendor/preact.js";
import { EMOJI, END_ISOLATE, HIDDEN, ISOLATE, RIGHT_TO_LEFT } from "./hidden_table.js";

const LAYOUT = "\n\r\t";
const WORDS = ["title", "aria-label", "aria-description", "aria-valuetext", "placeholder", "alt", "label"];
const any = new RegExp(`(?![${LAYOUT}])[${HIDDEN}]`, "u");
const each = new RegExp(`(?:${EMOJI})|([${HIDDEN}])`, "gu");
const turned = new RegExp(`[${RIGHT_TO_LEFT}]`, "u");

const number = character => `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;

export function showHidden(text) {
  if (!any.test(text)) return text;
  return text.replace(each, (whole, odd) => (odd === undefined || LAYOUT.includes(odd) ? whole : number(odd)));
}

export function isolate(text) {
  return turned.test(text) ? `${ISOLATE}${text}${END_ISOLATE}` : text;
}

// What a person types stays as it is: only texts and words about elements are changed.
export function guardTexts() {
  // An element that is drawn again may bring the same properties.
  const before = options.vnode,
    seen = new WeakSet();
  options.vnode = vnode => {
    if (vnode.type === null) {
      if (typeof vnode.props === "string") vnode.props = isolate(showHidden(vnode.props));
    } else if (typeof vnode.type === "string" && !seen.has(vnode.props)) {
      seen.add(vnode.props);
      for (const name of WORDS)
        if (typeof vnode.props[name] === "string") vnode.props[name] = isolate(showHidden(vnode.props[name]));
    }
    before?.(vnode);
  };
}
