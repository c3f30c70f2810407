// Stands in for the socket of the inspector's page, in the playground: it answers with what was recorded, and refuses
// the rest. `session.js` has the recording: question → its parts and its answer.
(() => {
  const answers = window.recordedSession;
  const REFUSED = {
    message: "This is a recording, and that is not in it.",
    fix: "to try everything: defserve inspect server.py --web",
  };
  const LONGEST = 400; // milliseconds that an answer is held back: long enough to be seen

  const sorted = value => {
    if (Array.isArray(value)) return value.map(sorted);
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.keys(value)
        .sort()
        .map(name => [name, sorted(value[name])]),
    );
  };
  const keyOf = (verb, args) => `${verb} ${JSON.stringify(sorted(args))}`;
  const starting = words => Object.entries(answers).filter(([key]) => key.startsWith(words));

  // The defaults of a tool count as if they had been typed.
  const withDefaults = ({ era, tool, arguments: given, ...more }) => {
    const { tools } = answers[keyOf("tools.list", { era })]?.ok ?? { tools: [] };
    const properties = tools.find(each => each.name === tool)?.definition.inputSchema.properties ?? {};
    const known = Object.entries(properties).filter(([, schema]) => "default" in schema);
    const defaults = Object.fromEntries(known.map(([name, schema]) => [name, schema.default]));
    return { era, tool, arguments: { ...defaults, ...given }, ...more };
  };
  const rowsOfWire = () => starting("wire.rows ")[0][1].ok;
  const isPlain = ({ filter = "", kind = "all", from, to }) => !filter && kind === "all" && from == null && to == null;

  // What is asked in ways that nobody can record all of.
  const computed = {
    "tools.call": args => answers[keyOf("tools.call", withDefaults(args))],
    "wire.filter": ({ filter }) => ({ ok: { terms: [], problem: filter ? REFUSED.message : null } }),
    "wire.follow": args => isPlain(args) && starting("wire.follow ")[0][1],
    "wire.rows": ({ start = 0, stop, ...args }) => {
      const whole = rowsOfWire();
      return isPlain(args) && { ok: { ...whole, start, rows: whole.rows.slice(start, stop) } };
    },
    "wire.find": ({ seq, ...args }) => {
      const place = rowsOfWire().rows.findIndex(row => row.seq === seq);
      return isPlain(args) && { ok: { place: place < 0 ? null : place } };
    },
    "state.changes": ({ ids, ...where }) => {
      const known = starting("state.changes ").find(([key]) => key.includes(JSON.stringify(where.set)))?.[1].ok ?? {};
      return { ok: Object.fromEntries(ids.filter(id => id in known).map(id => [id, known[id]])) };
    },
  };

  // Each call has a number of its own, also one that was recorded once and is made twice.
  let lastCall = Math.max(...(answers["tools.calls {}"]?.ok.calls ?? []).map(({ number }) => number), 0);
  const numbered = part => (part.call ? { call: { ...part.call, number: ++lastCall } } : part);

  location.hash ||= "tools/readings"; // the page opens on a call with its result
  sessionStorage.setItem("defserve.token", "recorded");
  window.WebSocket = class {
    static OPEN = 1;
    readyState = 0;

    constructor() {
      setTimeout(() => {
        this.readyState = 1;
        this.onopen();
      });
    }

    send(text) {
      const { id, do: verb, with: args } = JSON.parse(text);
      if (verb === "cancel") return;
      const answer = computed[verb]?.(args) || answers[keyOf(verb, args)] || { error: REFUSED };
      const say = messages => this.onmessage({ data: JSON.stringify(messages) });
      const end = Object.fromEntries(["ok", "error"].filter(name => name in answer).map(name => [name, answer[name]]));
      setTimeout(() => {
        say((answer.parts ?? []).map(part => ({ id, part: numbered(part) })));
        if (Object.keys(end).length === 0) return; // it is followed
        const wait = verb === "tools.call" ? Math.min(answer.ok?.ms ?? 0, LONGEST) : 0;
        setTimeout(() => say([{ id, ...end }]), wait);
      });
    }
  };
})();
