// The checkpoints of one tree as the host tells them, and what can be said about them without asking it again.
const SHORTEST = 4,
  SEVERAL = -1;

export class Tree {
  constructor() {
    this.clear();
  }

  clear() {
    Object.assign(this, { ids: [], parents: [], times: [], calls: [], changes: [], makers: [], placeOf: new Map() });
    this.head = this.next = null; // ids
    this.version = (this.version ?? 0) + 1; // changes with every change of the rows
    this.starts = new Map(); // first letters → the one checkpoint that begins so, or SEVERAL
    this.shorts = [];
  }

  get count() {
    return this.ids.length;
  }
  get headPlace() {
    return this.placeOf.get(this.head) ?? -1;
  }

  // A part of what the host sends.
  take({ from, checkpoints, head, at }) {
    if (from === 0 && this.count) this.clear();
    for (const [id, parent, , time, call, change, who] of checkpoints) {
      const place = this.ids.length;
      this.placeOf.set(id, place);
      this.ids.push(id);
      this.parents.push(parent);
      this.times.push(time);
      this.calls.push(call);
      this.changes.push(change);
      this.makers.push(who);
      this.shorten(place);
    }
    if (head !== undefined) this.head = head;
    if (at !== undefined) this.next = at;
    this.version++;
  }

  // The first four letters of an id, and more where two would be alike. What ids of ours begin with is left out.
  shorten(place, length = SHORTEST) {
    const name = bare(this.ids[place]),
      start = name.slice(0, length),
      other = this.starts.get(start);
    if (other === undefined) {
      this.starts.set(start, place);
      this.shorts[place] = start;
      return;
    }
    if (other !== SEVERAL) {
      this.starts.set(start, SEVERAL);
      this.shorten(other, length + 1);
    }
    if (length <= name.length) this.shorten(place, length + 1);
    else this.shorts[place] = name;
  }

  short(id) {
    const place = this.placeOf.get(id);
    return place === undefined ? bare(id ?? "").slice(0, SHORTEST) : this.shorts[place];
  }

  ancestors(place) {
    const found = [];
    for (let at = place; at >= 0; at = this.parents[at]) found.push(at);
    return found;
  }

  // How to get from one checkpoint to another: `back` are left behind, `on` are gone through, in order. `shared` is
  // where both lines meet, or -1.
  between(a, b) {
    const up = this.ancestors(a),
      from = new Set(up),
      on = [];
    let at = b;
    while (at >= 0 && !from.has(at)) {
      on.push(at);
      at = this.parents[at];
    }
    return { shared: at, back: at < 0 ? up : up.slice(0, up.indexOf(at)), on: on.reverse() };
  }

  // Places that a search finds, newest first.
  find(text) {
    const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const found = [];
    for (let at = this.count - 1; at >= 0; at--) {
      const said =
        `${this.ids[at]} ${this.calls[at] ?? ""} ${this.changes[at] ?? ""} ${this.makers[at] ?? ""}`.toLowerCase();
      if (words.every(word => said.includes(word))) found.push(at);
    }
    return found;
  }

  // Who made the checkpoints from one place to another on a line, in words.
  makersOf(from, to) {
    const names = new Set();
    for (let at = from; at >= 0; at = this.parents[at]) {
      if (this.makers[at]) names.add(this.makers[at]);
      if (at === to || names.size > 3) break;
    }
    const found = [...names];
    if (!found.length) return "";
    return found.length > 3
      ? " by several"
      : " by " + (found.length === 1 ? found[0] : `${found.slice(0, -1).join(", ")} and ${found.at(-1)}`);
  }

  row(at) {
    const parent = this.parents[at];
    return {
      id: this.ids[at],
      parent: parent >= 0 ? this.ids[parent] : null,
      time: this.times[at],
      call: this.calls[at],
      change: this.changes[at],
      who: this.makers[at],
      head: this.ids[at] === this.head,
    };
  }
}

const bare = id => id.replace(/^[a-z]+_/, "");

// A colour belongs to the end of a line, and goes on to the checkpoint that is made after it.
export class Colours {
  constructor() {
    this.of = new Map();
  }

  // line → 1 … 6. Line 0 is asked first, so that it keeps what it had.
  assign(tree, ends) {
    const used = new Array(7).fill(0),
      found = [];
    const taken = new Set();
    for (const end of ends) {
      let colour = 0;
      for (let at = end, steps = 0; at >= 0 && steps < 64 && !colour; at = tree.parents[at], steps++) {
        const known = this.of.get(tree.ids[at]);
        if (known && !taken.has(tree.ids[at])) {
          colour = known;
          taken.add(tree.ids[at]);
        }
      }
      if (!colour) {
        colour = 1;
        for (let each = 2; each <= 6; each++) if (used[each] < used[colour]) colour = each;
      }
      used[colour]++;
      found.push(colour);
    }
    this.of = new Map(found.map((colour, line) => [tree.ids[ends[line]], colour]));
    return found;
  }
}
