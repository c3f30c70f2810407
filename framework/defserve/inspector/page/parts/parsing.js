// JSON in a text of a server. What is nested too deep to be drawn, or very long, stays a text.
const DEEPEST = 100;
const LONGEST = 5000000;

function fits(value, left) {
  if (value === null || typeof value !== "object") return true;
  return left > 0 && (Array.isArray(value) ? value : Object.values(value)).every(each => fits(each, left - 1));
}

// A member that an object has itself. Servers choose names, and every object inherits some, such as `constructor`.
export const own = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

// The value of a text; undefined if it is no JSON that can be shown.
export function parsed(text) {
  if (typeof text !== "string" || text.length > LONGEST) return undefined;
  try {
    const value = JSON.parse(text);
    return fits(value, DEEPEST) ? value : undefined;
  } catch {
    return undefined;
  }
}
