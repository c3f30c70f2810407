// What a JSON Schema means for a form: which field, what it starts with, and what is wrong with a value. No drawing.
// A schema comes from a server, and may be made to take for ever: every walk has a budget of steps.
const DEEPEST = 6;
const STEPS = 2000;
const MOST_BRANCHES = 50;
const RESOLVING = 300;
const known = new WeakMap(); // schema → what it was resolved to
const done = new WeakSet(); // what schemas were resolved to
const budget = (steps = STEPS) => ({ left: steps });

function pointed(root, ref) {
  if (typeof ref !== "string" || !ref.startsWith("#")) return {};
  let steps;
  try {
    steps = ref.slice(1).split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return {};
  }
  const names = steps.map(step => step.replace(/~1/g, "/").replace(/~0/g, "~"));
  // Servers choose names, and every object inherits some, such as `constructor`.
  return names.reduce((at, name) => (at != null && Object.hasOwn(at, name) ? at[name] : undefined), root) ?? {};
}

const isText = value => typeof value === "string",
  isObject = value =>
    value !== null && typeof value === "object" && !Array.isArray(value) && !(value instanceof Number);
const never = () => false;
const KNOWN = {
  branches: never,
  optional: never, // words of ours
  type: value => isText(value) || Array.isArray(value),
  title: isText,
  description: isText,
  format: isText,
  contentMediaType: isText,
  contentEncoding: isText,
  properties: isObject,
  required: Array.isArray,
  enum: Array.isArray,
  enumNames: Array.isArray,
  examples: Array.isArray,
};

// Without the members of a wrong type: a form does as if they were not there. Servers send anything.
function tidy(schema) {
  const odd = Object.keys(KNOWN).filter(name => name in schema && !KNOWN[name](schema[name]));
  return odd.length ? Object.fromEntries(Object.entries(schema).filter(([name]) => !odd.includes(name))) : schema;
}

// The schema itself: references followed, `allOf` merged. `optional`: it may also be null.
export function resolve(schema, root) {
  if (schema == null || typeof schema !== "object") return {};
  if (done.has(schema)) return schema;
  let found = known.get(schema);
  if (!found || found.root !== root)
    known.set(schema, (found = { root, schema: resolved(schema, root, budget(RESOLVING)) }));
  return found.schema;
}

function resolved(schema, root, steps) {
  const whole = schema !== null && typeof schema === "object";
  if (whole && done.has(schema)) return schema;
  const found = whole && steps.left-- > 0 ? opened(tidy(schema), root, steps) : {};
  done.add(found);
  return found;
}

function opened(schema, root, steps) {
  let found = schema;
  if (found.$ref) {
    const { $ref, ...beside } = found;
    found = { ...resolved(pointed(root, $ref), root, steps), ...beside };
  }
  if (Array.isArray(found.allOf)) {
    const { allOf, ...own } = found;
    found = [...allOf.slice(0, MOST_BRANCHES).map(each => resolved(each, root, steps)), own].reduce(
      (all, each) => ({
        ...all,
        ...each,
        ...(all.properties || each.properties ? { properties: { ...all.properties, ...each.properties } } : {}),
        ...(all.required || each.required ? { required: [...(all.required ?? []), ...(each.required ?? [])] } : {}),
      }),
      {},
    );
  }
  // Servers write a constant as the only one of a choice, for clients that know no `const`.
  if (Array.isArray(found.enum) && found.enum.length === 1 && !("const" in found)) {
    const { enum: only, ...beside } = found;
    found = { ...beside, const: only[0] };
  }
  const several = found.anyOf ?? found.oneOf;
  if (Array.isArray(several)) {
    const { anyOf, oneOf, ...beside } = found;
    const inside = several.slice(0, MOST_BRANCHES).map(each => resolved(each, root, steps));
    const rest = inside.filter(each => each.type !== "null");
    const optional = rest.length < inside.length;
    if (rest.length === 1) return { ...rest[0], ...beside, optional };
    // Choices with labels.
    if (rest.length && rest.every(each => "const" in each))
      return { ...beside, enum: rest.map(each => each.const), enumNames: rest.map(each => each.title), optional };
    return { ...beside, ...(rest.length && { branches: rest }), optional };
  }
  if (Array.isArray(found.type)) {
    const types = found.type.filter(each => isText(each) && each !== "null").slice(0, MOST_BRANCHES);
    const optional = types.length < found.type.length;
    if (types.length === 1) return { ...found, type: types[0], optional };
    const { type, ...beside } = found;
    return { ...beside, ...(types.length && { branches: types.map(each => ({ ...beside, type: each })) }), optional };
  }
  return found;
}

const FORMATS = { __proto__: null, date: "date", "date-time": "moment", time: "time" };
// Not "binary" alone: that is the `bytes` of pydantic, which takes a text as it is.
const isFile = schema => schema.contentEncoding === "base64" || ["byte", "base64", "base64url"].includes(schema.format);

// Which field a resolved schema gets.
export function kindOf(schema, root) {
  if (schema.branches) return "union";
  if ("const" in schema) return "const";
  if (Array.isArray(schema.enum)) return "enum";
  if (schema.type === "string") return isFile(schema) ? "file" : (FORMATS[schema.format] ?? "text");
  if (schema.type === "integer" || schema.type === "number") return "number";
  if (schema.type === "boolean") return "boolean";
  if (schema.type === "array") {
    const items = resolve(schema.items, root);
    if (items.type === "array") return "list"; // it may be a list of itself
    const kind = kindOf(items, root);
    return kind === "text" ? "texts" : kind === "enum" ? "choices" : "list";
  }
  if (schema.type === "object" || schema.properties) {
    const { properties, additionalProperties } = schema;
    return properties && (Object.keys(properties).length || additionalProperties === false) ? "object" : "map";
  }
  return "any";
}

const WORDS = {
  moment: "date and time",
  texts: "list of texts",
  text: "text",
  boolean: "boolean",
  map: "object",
  any: "any JSON",
  date: "date",
  time: "time",
  enum: "choice",
};

const several = words =>
  words.replace(/^(text|integer|number|boolean|date|time|choice|file|object|list)\b(?! and)/, "$1s");

// The type in words, beside the name of a field.
export function typeWords(schema, root, depth = 0) {
  const kind = kindOf(schema, root);
  if (kind === "union") return `one of ${schema.branches.length}`;
  if (kind === "number") return schema.type;
  if (kind === "const") return "fixed";
  if (kind === "file")
    return schema.contentMediaType ? `file, ${schema.contentMediaType.split("/").pop().toUpperCase()}` : "file";
  if (kind === "object") return schema.title ? `object ${schema.title}` : "object";
  if (kind === "list" || kind === "choices") {
    const items = resolve(schema.items, root);
    return `list of ${items.title ?? (depth > 2 ? "lists" : several(typeWords(items, root, depth + 1)))}`;
  }
  if (kind === "text" && schema.format) return schema.format;
  return WORDS[kind] ?? kind;
}

const figure = value => (typeof value === "number" || value instanceof Number ? value : null);
const counted = (least, most, thing) => {
  const many = count => `${count} ${thing}${count === 1 ? "" : "s"}`;
  if (least > 0 && most != null) return least === most ? many(most) : `${least} to ${many(most)}`;
  return most != null ? `at most ${many(most)}` : least > 0 ? `at least ${many(least)}` : "";
};

// The bounds of a value, in words; empty if it may be anything.
export function boundWords(schema) {
  const [least, most, above, below] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"].map(name =>
    figure(schema[name]),
  );
  if (schema.type === "integer" || schema.type === "number") {
    return [
      least != null && most != null
        ? `${least} to ${most}`
        : least != null
          ? `at least ${least}`
          : most != null
            ? `at most ${most}`
            : "",
      above != null && `more than ${above}`,
      below != null && `less than ${below}`,
    ]
      .filter(Boolean)
      .join(", ");
  }
  if (schema.type === "string") return counted(figure(schema.minLength) ?? 0, figure(schema.maxLength), "character");
  return schema.type === "array" ? counted(figure(schema.minItems) ?? 0, figure(schema.maxItems), "item") : "";
}

// The label of a choice.
export const choiceWords = (schema, at) => {
  const label = Array.isArray(schema.enumNames) ? schema.enumNames[at] : undefined;
  return typeof label === "string" && label
    ? label
    : typeof schema.enum[at] === "string"
      ? schema.enum[at]
      : (JSON.stringify(schema.enum[at]) ?? "");
};

// The name of one branch of a union.
export function branchWords(branch, root) {
  const tag = Object.values(branch.properties ?? {})
    .map(each => resolve(each, root))
    .find(each => "const" in each);
  return (
    branch.title ??
    (tag ? String(tag.const) : null) ??
    ("const" in branch ? String(branch.const) : typeWords(branch, root))
  );
}

// `structuredClone` would take from a long integer what it is.
const copied = value =>
  Array.isArray(value)
    ? value.map(copied)
    : isObject(value)
      ? Object.fromEntries(Object.entries(value).map(([name, each]) => [name, copied(each)]))
      : value;

// What a field starts with; undefined leaves it out.
export function initial(schema, root, required = true, depth = 0, steps = budget(60)) {
  if ("default" in schema && schema.default !== null) return copied(schema.default);
  if (!required || schema.optional || depth > DEEPEST || steps.left-- <= 0) return undefined;
  const kind = kindOf(schema, root);
  if (kind === "const") return schema.const;
  if (kind === "union") return initial(schema.branches[0], root, true, depth + 1, steps);
  if (kind === "object") {
    const needed = schema.required ?? [];
    const made = [];
    for (const [name, each] of Object.entries(schema.properties)) {
      const inner = resolve(each, root);
      const value = "const" in inner ? inner.const : initial(inner, root, needed.includes(name), depth + 1, steps);
      if (value !== undefined) made.push([name, value]);
    }
    return Object.fromEntries(made);
  }
  if (kind === "boolean") return false;
  if (["texts", "choices", "list"].includes(kind)) return [];
  if (kind === "map") return {};
  return undefined;
}

// -- what is wrong ---------------------------------------------------------------------------------------------------

const shown = value => {
  const text = JSON.stringify(value) ?? "nothing";
  return text.length > 42 ? text.slice(0, 39) + "…" : text;
};
const typeOf = value =>
  value === null
    ? "null"
    : Array.isArray(value)
      ? "array"
      : Number.isInteger(value) || value instanceof Number
        ? "integer"
        : typeof value;
export const either = words => [...new Set(words)].join(", ").replace(/, ([^,]*)$/, " or $1");
const spell = (path, step) =>
  typeof step === "number"
    ? `${path}[${step}]`
    : /^[\p{L}_][\p{L}\p{N}_-]*$/u.test(step)
      ? path
        ? `${path}.${step}`
        : step
      : `${path}[${JSON.stringify(step)}]`;
export { spell };

const PATTERNS = {
  date: [/^\d{4}-\d\d-\d\d$/, "date (YYYY-MM-DD)"],
  moment: [/^\d{4}-\d\d-\d\d[T ]\d\d:\d\d/, "date and time (ISO 8601)"],
  time: [/^\d\d:\d\d/, "time (HH:MM:SS)"],
};
const wanted = schema =>
  schema.branches
    ? either(schema.branches.map(wanted))
    : schema.enum
      ? either(schema.enum.map(shown))
      : (schema.type ?? (schema.properties ? "object" : "anything"));

const RULES = [
  ["minimum", (value, least) => typeof value === "number" && value < least, least => `must be at least ${least}`],
  [
    "exclusiveMinimum",
    (value, least) => typeof value === "number" && value <= least,
    least => `must be greater than ${least}`,
  ],
  ["maximum", (value, most) => typeof value === "number" && value > most, most => `must be at most ${most}`],
  [
    "exclusiveMaximum",
    (value, most) => typeof value === "number" && value >= most,
    most => `must be less than ${most}`,
  ],
  [
    "multipleOf",
    (value, of) => typeof value === "number" && Math.abs(value / of - Math.round(value / of)) > 1e-9,
    of => `must be a multiple of ${of}`,
  ],
  [
    "minLength",
    (value, least) => typeof value === "string" && [...value].length < least,
    least => `must have at least ${least} character${least === 1 ? "" : "s"}`,
  ],
  [
    "maxLength",
    (value, most) => typeof value === "string" && [...value].length > most,
    most => `must have at most ${most} character${most === 1 ? "" : "s"}`,
  ],
  [
    "minItems",
    (value, least) => Array.isArray(value) && value.length < least,
    least => `must have at least ${least} item${least === 1 ? "" : "s"}`,
  ],
  [
    "maxItems",
    (value, most) => Array.isArray(value) && value.length > most,
    most => `must have at most ${most} item${most === 1 ? "" : "s"}`,
  ],
];

// The problems of a value, worded as the server words them: [{ path, reason }]. Patterns are left to the server: one
// can be made to take for ever.
export function problems(value, given, root, path = "", steps = budget()) {
  if (steps.left-- <= 0) return [];
  const schema = resolve(given, root);
  const wrong = reason => [{ path, reason }];
  if (value === null && schema.optional) return [];
  const kind = kindOf(schema, root);
  if (kind === "any") return [];
  if (kind === "union") {
    const tries = schema.branches.map(branch => problems(value, branch, root, path, steps));
    if (tries.some(each => each.length === 0)) return [];
    const inside = schema.branches
      .map((branch, at) => [branch, tries[at]])
      .filter(([branch]) => accepts(value, branch, root));
    return inside.length ? inside[0][1] : wrong(`expected ${wanted(schema)}, got ${shown(value)}`);
  }
  if (kind === "const")
    return JSON.stringify(value) === JSON.stringify(schema.const)
      ? []
      : wrong(`expected ${shown(schema.const)}, got ${shown(value)}`);
  if (kind === "enum")
    return schema.enum.some(each => JSON.stringify(each) === JSON.stringify(value))
      ? []
      : wrong(`expected ${either(schema.enum.map(shown))}, got ${shown(value)}`);
  const type = typeOf(value),
    fits =
      type === schema.type || (schema.type === "number" && type === "integer") || (!schema.type && type === "object");
  const [pattern, words] = PATTERNS[kind] ?? [];
  if (!fits || (pattern && !pattern.test(value)))
    return wrong(`expected ${words ?? schema.type ?? "object"}, got ${shown(value)}`);
  const found = RULES.filter(([name, breaks]) => schema[name] != null && breaks(value, schema[name])).map(
    ([name, , say]) => ({ path, reason: `${say(schema[name])}, got ${shown(value)}` }),
  );
  if (type === "array")
    value.forEach((each, at) => found.push(...problems(each, schema.items, root, spell(path, at), steps)));
  if (type === "object") found.push(...members(value, schema, root, path, steps));
  return found;
}

function members(value, schema, root, path, steps) {
  const known = schema.properties ?? {},
    found = [];
  for (const name of schema.required ?? [])
    if (!Object.hasOwn(value, name)) found.push({ path: spell(path, name), reason: "missing" });
  for (const [name, each] of Object.entries(value)) {
    if (Object.hasOwn(known, name)) found.push(...problems(each, known[name], root, spell(path, name), steps));
    else if (schema.additionalProperties === false)
      found.push({ path, reason: `unknown argument ${shown(name)}; known: ${Object.keys(known).join(", ")}` });
    else if (schema.additionalProperties && typeof schema.additionalProperties === "object")
      found.push(...problems(each, schema.additionalProperties, root, spell(path, name), steps));
  }
  return found;
}

// Whether a value is of the kind of a branch, even if something in it is wrong.
export function accepts(value, branch, root) {
  const schema = resolve(branch, root);
  const kind = kindOf(schema, root),
    type = typeOf(value);
  if (kind === "union") return schema.branches.some(each => accepts(value, each, root));
  if (kind === "const") return value === schema.const;
  if (kind === "enum") return schema.enum.includes(value);
  if (kind === "any") return true;
  if (type === "object" && schema.properties) {
    return Object.entries(schema.properties).every(([name, each]) => {
      const tag = resolve(each, root);
      return !("const" in tag) || !Object.hasOwn(value, name) || value[name] === tag.const;
    });
  }
  return type === schema.type || (schema.type === "number" && type === "integer");
}
