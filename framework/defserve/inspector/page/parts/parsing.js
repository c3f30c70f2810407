// JSON in a text of a server. What is nested too deep to be drawn, or very long, stays a text.
const DEEPEST = 100;
const LONGEST = 5000000;

// An integer past 2^53, which a number of JavaScript would round. It is shown and sent as it came. In arithmetic it is
// the rounded number. Values of servers may hold it wherever they hold a number: it is no object with members.
export class LongInteger extends Number {
  #digits;
  constructor(digits) {
    super(digits);
    this.#digits = digits;
  }
  toString() {
    return this.#digits;
  }
  toJSON() {
    return JSON.rawJSON(this.#digits);
  }
}

const exact = (_, value, from) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(from?.source)
    ? new LongInteger(from.source)
    : value;

// As `JSON.parse`, but no integer is rounded, if the browser knows how to write such a one.
export const fromJson = text =>
  JSON.rawJSON && /(?<![.\d])\d{16}/.test(text) ? JSON.parse(text, exact) : JSON.parse(text);

// What has no members.
export const isScalar = value => value === null || typeof value !== "object" || value instanceof Number;

// What a person typed: a number, or the text itself if it is none. It is undefined if nothing was typed.
export function typedNumber(text) {
  const digits = text.trim(),
    value = Number(digits);
  if (digits === "") return undefined;
  if (/^-?\d+$/.test(digits) && !Number.isSafeInteger(value))
    return JSON.rawJSON ? new LongInteger(String(BigInt(digits))) : text;
  return Number.isFinite(value) ? value : text;
}

function fits(value, left) {
  if (isScalar(value)) return true;
  return left > 0 && (Array.isArray(value) ? value : Object.values(value)).every(each => fits(each, left - 1));
}

// A member that an object has itself. Servers choose names, and every object inherits some, such as `constructor`.
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

// The value of a text; undefined if it is no JSON that can be shown.
export function parsed(text) {
  if (typeof text !== "string" || text.length > LONGEST) return undefined;
  try {
    const value = fromJson(text);
    return fits(value, DEEPEST) ? value : undefined;
  } catch {
    return undefined;
  }
}
