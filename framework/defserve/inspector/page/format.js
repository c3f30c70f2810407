// Numbers, sizes and times as the page writes them, everywhere alike.
const whole = new Intl.NumberFormat("en");
export const number = value => whole.format(value ?? 0);
export const plural = (count, one, many = one + "s") => `${number(count)} ${count === 1 ? one : many}`;

// A word as a shell reads it, for a line that is copied. A saved session may be from a stranger.
export const quoted = text => (/^[\w./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

export function bytes(size) {
  if (size < 1000) return `${size} B`;
  if (size < 1e6) return `${(size / 1e3).toFixed(size < 1e4 ? 1 : 0)} kB`;
  return `${(size / 1e6).toFixed(1)} MB`;
}

export function duration(ms) {
  if (ms == null) return "";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} m ${Math.round((ms % 60000) / 1000)} s`;
}

// Seconds since 1970 → 09:41:07.112
export function clock(seconds, millis = true) {
  const at = new Date(seconds * 1000);
  const two = value => String(value).padStart(2, "0");
  const text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return millis ? `${text}.${String(at.getMilliseconds()).padStart(3, "0")}` : text;
}

// Seconds since 1970 → 18 Nov 2026, 09:41
export const day = seconds =>
  new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

// How long ago, short: 21 m
export function age(seconds, now = Date.now() / 1000) {
  const passed = Math.max(0, now - seconds);
  if (passed < 60) return `${Math.floor(passed)} s`;
  if (passed < 3600) return `${Math.floor(passed / 60)} m`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h`;
  return `${Math.floor(passed / 86400)} d`;
}

// Bytes that a base64 text stands for.
export const decodedSize = text => Math.floor((text.replace(/=+$/, "").length * 3) / 4);
export const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

const STEPS = [1, 2, 5];
const LONG_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400]; // s
const UNITS = [
  [86400, "d"],
  [3600, "h"],
  [60, "min"],
  [1, "s"],
];

// The next step that people count in: 1, 2 or 5 of a unit, and of minutes also 15 or 30 seconds.
export function roundStep(least) {
  if (least > 0.5)
    return LONG_STEPS.find(each => each >= least) ?? LONG_STEPS.at(-1) * Math.ceil(least / LONG_STEPS.at(-1));
  const unit = 10 ** Math.floor(Math.log10(least));
  return unit * (STEPS.find(each => unit * each >= least) ?? 10);
}

// Time since something: +20 ms, +1.5 s, +1 min 40 s.
export function since(seconds) {
  const round = value => String(Number(value.toPrecision(4)));
  if (seconds < 0.9995) return `+${round(seconds * 1000)} ms`;
  if (seconds < 60) return `+${round(seconds)} s`;
  const at = UNITS.findIndex(([size]) => seconds >= size - 0.5),
    [[size, unit], [part, smaller]] = [UNITS[at], UNITS[at + 1]];
  const parts = Math.round(seconds / part),
    whole = Math.floor((parts * part) / size),
    rest = parts - (whole * size) / part;
  return `+${whole} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}
