// What the page says of itself to a view.
import { app } from "../../store.js";

export const TALLEST = 4000; // px
// The names of the variables are those of MCP apps.
const VARIABLES = {
  "--color-background-primary": "--surface",
  "--color-background-secondary": "--well",
  "--color-text-primary": "--text",
  "--color-text-secondary": "--text-2",
  "--color-border-primary": "--line-strong",
  "--color-text-info": "--accent",
  "--font-mono": "--mono",
};
export function context(frame) {
  const style = getComputedStyle(document.documentElement);
  const variables = Object.fromEntries(
    Object.entries(VARIABLES)
      .map(([name, own]) => [name, style.getPropertyValue(own).trim()])
      .filter(([, value]) => value),
  );
  return {
    theme: app.get().theme,
    styles: { variables },
    locale: navigator.language,
    timeZone: Intl.DateTimeFormat().resolvedOptions().timeZone,
    platform: "web",
    ...(frame?.clientWidth ? { containerDimensions: { width: frame.clientWidth, maxHeight: TALLEST } } : {}),
  };
}
