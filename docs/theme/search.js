// The search of the site, in place of the theme's own. It ranks pages, and leads to the section of a page that fits
// best.
//
//   index:    words without their endings, counted by field: title, headings, links, what people ask, first sentence,
//             text, code
//   question: words without those that say nothing, with words that mean the same, with typos repaired
//   rank:     BM25F of the page, and of its best section; a page that has all words before one that has some; a page
//             that explains the message which a question quotes
//
// It answers the messages of the theme: 0 has the index, 1 says that it was read; 2 is a question, 3 has its results.
{
  // What a word counts in a field, and how much less it counts in a long one (the b of BM25).
  const PAGE_FIELDS = {
    name: { weight: 4, b: 0.5 },
    title: { weight: 4, b: 0.1 },
    headings: { weight: 3.5, b: 0.4 },
    links: { weight: 3.5, b: 0.6 },
    asked: { weight: 1, b: 0.5 },
    lead: { weight: 3.5, b: 0.2 },
    text: { weight: 0.5, b: 0.5 },
    code: { weight: 0.3, b: 0.8 },
  };
  const SECTION_FIELDS = {
    title: { weight: 8, b: 0.2 },
    links: { weight: 3, b: 0.6 },
    asked: { weight: 1.5, b: 0.5 },
    text: { weight: 0.5, b: 0.7 },
    code: { weight: 0.3, b: 0.5 },
  };
  const PHRASE_FIELDS = { asked: { weight: 8, b: 0.75 } };
  // Explanations before lists. Whoever types a name looks for the list: API is the generated reference.
  const KINDS = { Learn: 1, Guides: 1, Cookbook: 0.85, Protocols: 0.8, Project: 0.8, Reference: 0.8, API: 0.6 };
  const SATURATION = 8; // the k1 of BM25
  const MAX_RARITY = 1.75; // what a rare word counts at most: questions are full of words that just happen to be rare
  const SECTION_SHARE = 0.45; // what the best section counts, beside its page
  const PHRASE_SHARE = 0.15; // and what the best phrase of what people ask does: its rare words count in full
  const COVERAGE = 0.6; // how much is lost with words that a page does not have
  const ENOUGH = 0.1; // what a word is worth on a page that has it
  const SAME = 0.35; // a word that means the same, beside the word itself
  const UNKNOWN = 0.8; // the same, if no page has the word itself
  const REPAIRED = 0.7; // a word that was begun or mistyped
  const QUOTED = 0.4; // each word of a message that a question quotes
  const MAX_QUOTED = 8;
  const MOST = 0.8; // of the words of a message, or of a question, that the other must have
  const PAGE_SIZE = 10;
  const MAX_WORDS = 16;
  const MAX_PASTED = 64; // words of a question that are compared to messages
  const MAX_RANGES = 40;

  // Words ----------------------------------------------------------------------------------------------------------

  // Porter's stemmer, with the endings that matter here: ending, what replaces it, how many syllables stay before it.
  const ENDINGS = [
    "sses:ss:0 ies:y:0 ss:ss:0 us:us:0 is:is:0 s::0",
    "eed:ee:1 ied:y:0 ing::0 ed::0",
    "ization:ize:1 ational:ate:1 fulness:ful:1 iveness:ive:1 ation:ate:1 ator:ate:1 ency:ent:1 ancy:ant:1 " +
      "ality:al:1 ivity:ive:1 ability:able:1 ally:al:1 ly::1",
    "icate:ic:1 ative::1 alize:al:1 ical:ic:1 ness::1 ful::1",
    "ement::2 ment::1 ance::2 ence::2 able::2 ible::2 tion:t:1 sion:s:2 ant::2 ent::2 ism::2 ate::2 ous::2 ive::2 " +
      "ize::2 ise::2 er::2 or::2 al::2 ic::2",
    "e::1",
  ].map(step => step.split(" ").map(rule => rule.split(":")));
  const syllables = word => word.replace(/^[^aeiouy]+/, "").match(/[aeiouy]+[^aeiouy]+/g)?.length ?? 0;
  const stem = word => {
    if (word.length < 4 || /\d/.test(word)) return word;
    let result = word;
    for (const rules of ENDINGS) {
      const [ending, replacement, least] = rules.find(([each]) => result.endsWith(each)) ?? [];
      const start = ending && result.slice(0, -ending.length);
      if (!start || start.length < 2 || syllables(`${start}t`) < 1 || syllables(start) < least) continue;
      result = start + replacement;
      if (ending !== "ing" && ending !== "ed") continue;
      if (/(at|bl|iz)$/.test(result)) result += "e";
      else if (/([^aeiouylsz])\1$/.test(result)) result = result.slice(0, -1);
    }
    return result.replace(/ll$/, "l").replace(/y$/, "i");
  };

  // An identifier is found by its parts and as a whole: from_openapi, ToolError, sign-in. FastMCP is one word.
  const WORD = /[\p{L}\p{N}]+(?:[-_.'’][\p{L}\p{N}]+)*/gu;
  const PARTS = /['’](?:s|t|re|ll|d|ve)$|[-_.'’]|(?<=[a-z\dA-Z])(?=[A-Z][a-z])/;
  const MAX_PARTS = 3;
  const partsOf = word =>
    word
      .split(PARTS)
      .filter(Boolean)
      .map(part => part.toLowerCase());
  const wordsIn = text => (text.match(WORD) ?? []).flatMap(partsOf);
  const stemsOf = word => {
    const parts = partsOf(word);
    const whole = parts.length > 1 && parts.length <= MAX_PARTS ? [parts.join("")] : [];
    return [...parts, ...whole].map(stem);
  };

  // A command is one word, too: defserve call, defserve kernel start.
  const commandsIn = text =>
    [...text.matchAll(/\bdefserve (?:kernel )?([a-z][a-z-]+)/g)].map(([, name]) => `$${stem(name)}`);

  const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"' };
  const toText = html => html.replace(/<[^>]*>/g, " ").replace(/&(#?\w+);/g, (_, name) => ENTITIES[name] ?? " ");

  // Whether so many letters that were added, left out, changed or swapped make one word of the other.
  const isNear = (one, other, most) => {
    if (Math.abs(one.length - other.length) > most || one[0] !== other[0]) return false;
    let before = [];
    let row = Array.from({ length: other.length + 1 }, (_, at) => at);
    for (let i = 1; i <= one.length; i++) {
      const next = [i];
      for (let j = 1; j <= other.length; j++) {
        const change = one[i - 1] === other[j - 1] ? 0 : 1;
        next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + change);
        if (i > 1 && j > 1 && one[i - 1] === other[j - 2] && one[i - 2] === other[j - 1])
          next[j] = Math.min(next[j], before[j - 2] + 1);
      }
      [before, row] = [row, next];
    }
    return row[other.length] <= most;
  };

  // The index ------------------------------------------------------------------------------------------------------

  class Index {
    constructor(fields, maxRarity = MAX_RARITY) {
      this.maxRarity = maxRarity;
      this.names = Object.keys(fields);
      this.fields = Object.values(fields);
      this.sums = this.names.map(() => 0);
      this.documents = [];
      this.counts = new Map(); // stem → number of a document → its count in each field
      this.postings = new Map(); // stem → numbers of documents, and what they are worth for it
    }

    add(texts, about) {
      const number = this.documents.length;
      const lengths = this.names.map((name, field) => {
        for (const each of texts[name]) this.count(each, number, field);
        this.sums[field] += texts[name].length;
        return texts[name].length;
      });
      this.documents.push({ ...about, lengths });
    }

    count(word, number, field) {
      let found = this.counts.get(word);
      if (!found) this.counts.set(word, (found = new Map()));
      let counts = found.get(number);
      if (!counts) found.set(number, (counts = new Uint16Array(this.names.length)));
      counts[field]++;
    }

    // Once all documents are there: what each is worth for each of its words.
    finish() {
      const averages = this.sums.map(sum => sum / this.documents.length);
      for (const [word, found] of this.counts) {
        const values = [];
        for (const [number, counts] of found) {
          const { lengths } = this.documents[number];
          let sum = 0;
          for (const [at, { weight, b }] of this.fields.entries())
            if (counts[at]) sum += (weight * counts[at]) / (1 - b + (b * lengths[at]) / averages[at]);
          values.push([number, sum / (SATURATION + sum)]);
        }
        this.postings.set(word, values);
      }
      this.counts.clear();
    }

    // Numbers of documents, and what each is worth for a question.
    rank(terms) {
      const [worth, covered, values] = [0, 1, 2].map(() => new Float64Array(this.documents.length));
      const all = new Set();
      let whole = 0;
      for (const alternatives of terms) {
        const found = []; // documents that have the word, whose values are those of their best alternatives
        for (const [word, weight] of alternatives)
          for (const [number, value] of this.postings.get(word) ?? []) {
            if (values[number] === 0) found.push(number);
            values[number] = Math.max(values[number], weight * value);
          }
        const rarity = Math.min(this.maxRarity, Math.log(1 + this.documents.length / (found.length + 0.5)));
        whole += rarity;
        for (const number of found) {
          worth[number] += rarity * values[number];
          covered[number] += rarity * Math.min(1, values[number] / ENOUGH);
          values[number] = 0;
          all.add(number);
        }
      }
      return [...all].map(number => [number, worth[number] * (covered[number] / whole) ** COVERAGE]);
    }
  }

  let items = [];
  let pages = new Index(PAGE_FIELDS);
  let sections = new Index(SECTION_FIELDS);
  let phrases = new Index(PHRASE_FIELDS, Infinity);
  let messages = []; // what the program says and a section explains
  let empty = new Set(); // words that say nothing
  const synonyms = new Map(); // stem → stems
  let alike = []; // words that have some
  const stemsByWord = new Map(); // of all words of all pages
  let parts = new Map(); // word, or part of one, in small letters → its stem

  const stemsIn = text => {
    const result = [];
    for (const word of text.match(WORD) ?? []) {
      if (!stemsByWord.has(word)) stemsByWord.set(word, stemsOf(word));
      result.push(...stemsByWord.get(word));
    }
    return result.concat(commandsIn(text));
  };

  const readWords = words => {
    const link = (one, other) => {
      if (!synonyms.has(one)) synonyms.set(one, new Set());
      if (one !== other) synonyms.get(one).add(other);
    };
    const stems = text => text.split(" ").map(stem);
    empty = new Set(words.empty.split(" "));
    alike = [words.same, Object.keys(words.kinds), Object.values(words.kinds)].flat().flatMap(text => text.split(" "));
    for (const group of words.same.map(stems)) for (const one of group) for (const other of group) link(one, other);
    for (const [kind, things] of Object.entries(words.kinds))
      for (const one of stems(things)) for (const other of stems(kind)) link(one, other);
  };

  const readItem = ({ title, text, links = "", asked = [] }) => {
    const code = [];
    const prose = text.replace(/<pre>.*?<\/pre>/gs, block => (code.push(toText(block)), " "));
    return {
      title: stemsIn(toText(title)),
      links: stemsIn(links),
      asked: stemsIn(asked.join(" ")),
      text: stemsIn(toText(prose)),
      code: stemsIn(code.join(" ")),
    };
  };
  const readName = ({ title }) => stemsIn(toText(title).split(":")[0]);
  const readLead = ({ text }) => {
    const paragraphs = [...text.matchAll(/<p>(.*?)<\/p>/gs)].map(([, html]) => toText(html));
    return stemsIn(paragraphs.find(each => !each.trim().startsWith("since ")) ?? "");
  };

  const kindOf = ({ location, path }) => (location.startsWith("reference/") ? "API" : path[0]);

  // A title that is all code is a message of the program, with <names> for what differs.
  const readMessage = ({ title }) =>
    /^<code>.*<\/code>$/s.test(title) ? wordsIn(toText(title).replace(/<[^>]*>/g, " ")) : [];

  const readIndex = ({ items: given, config }) => {
    items = given;
    messages = [];
    readWords(config.words);
    pages = new Index(PAGE_FIELDS);
    sections = new Index(SECTION_FIELDS);
    phrases = new Index(PHRASE_FIELDS, Infinity);
    const open = []; // the page whose sections are being read
    const close = () => open.splice(0).forEach(({ texts, about }) => pages.add(texts, about));
    for (const [id, item] of items.entries()) {
      const texts = readItem(item);
      if (!item.location.includes("#")) {
        close();
        open.push({
          texts: { ...texts, name: readName(item), headings: [], lead: readLead(item) },
          about: { id, kind: kindOf(item) },
        });
      } else {
        const [page] = open;
        page.texts.headings = page.texts.headings.concat(texts.title);
        for (const name of ["text", "code", "links", "asked"]) page.texts[name] = page.texts[name].concat(texts[name]);
      }
      const about = { id, page: pages.documents.length };
      sections.add(texts, about);
      const words = readMessage(item);
      if (words.length > 1) messages.push({ ...about, words });
      for (const phrase of item.asked ?? []) phrases.add({ asked: stemsIn(phrase) }, about);
    }
    close();
    pages.finish();
    sections.finish();
    phrases.finish();
    parts = new Map([...[...stemsByWord.keys()].flatMap(partsOf), ...alike].map(part => [part, stem(part)]));
  };

  // Questions ------------------------------------------------------------------------------------------------------

  // Two words as one, also with the first in its plain form: timed out is timeout, logging in is login.
  const joinPair = (one, other) => {
    if (!one || !other) return [];
    const plain = one.replace(/(?:ed|ing)$/, "");
    return [...new Set([one, plain, `${plain}e`, plain.replace(/(.)\1$/, "$1")])].map(each => stem(each + other));
  };

  const toTerm = name => new Map([[name, 1]]);

  // Each word of a question as a map: stems that may stand for it, and what they count.
  const readQuestion = input => {
    const typed = (input.match(WORD) ?? []).slice(0, MAX_WORDS).flatMap(partsOf);
    const told = typed.map((word, at) => ({ word, before: typed[at - 1] ?? "", after: typed[at + 1] ?? "" }));
    const words = told.filter(({ word }) => !empty.has(word));
    const terms = (words.length > 0 ? words : told).map(({ word, before, after }) => {
      const alternatives = new Map([[stem(word), 1]]);
      const offer = (other, weight) => alternatives.set(other, Math.max(weight, alternatives.get(other) ?? 0));
      for (const pair of [...joinPair(before, word), ...joinPair(word, after)]) {
        if (pages.postings.has(pair)) offer(pair, 1);
        else for (const other of synonyms.get(pair) ?? []) offer(other, UNKNOWN);
      }
      const isKnown = pages.postings.has(stem(word));
      const similar = isKnown ? [] : findSimilar(word, after === "");
      for (const other of similar) offer(other, REPAIRED);
      const share = isKnown || similar.length > 0 ? SAME : UNKNOWN;
      for (const known of [stem(word), ...similar]) for (const other of synonyms.get(known) ?? []) offer(other, share);
      return alternatives;
    });
    return [...terms, ...[...namesIn(input), ...commandsIn(input)].map(toTerm)];
  };

  // The names in a question that some page has, as stems: list_changed, defserve.auth.ApiKeys. Each counts beside its
  // parts.
  const namesIn = input => {
    const words = (input.match(WORD) ?? []).flatMap(word => [word, ...word.split(".")]);
    const names = words.filter(word => /\w[._]\w|[a-z][A-Z]/.test(word)).map(word => stem(partsOf(word).join("")));
    return [...new Set(names)].filter(name => pages.postings.has(name));
  };

  // Stems for a word that no page has: it may be begun, be two words in one, or be mistyped.
  const findSimilar = (word, isLast) => {
    const known = [...parts.keys()];
    const begun = isLast && word.length > 1 ? known.filter(each => each.startsWith(word)) : [];
    if (begun.length > 0) return begun.map(stem);
    for (let at = 3; at <= word.length - 3; at++) {
      const halves = [word.slice(0, at), word.slice(at)].map(stem);
      if (halves.every(half => pages.postings.has(half))) return halves;
    }
    if (word.length < 4 || synonyms.has(stem(word))) return [];
    const near = most => known.filter(each => isNear(word, each, most)).map(stem);
    const mistyped = near(1);
    return mistyped.length > 0 || word.length < 8 ? mistyped : near(2);
  };

  const isInReference = name => pages.postings.get(name).some(([number]) => pages.documents[number].kind === "API");

  // In what people ask, words that say nothing tell questions apart: who, what, where.
  const readEmpty = input =>
    wordsIn(input)
      .slice(0, MAX_WORDS)
      .filter(word => empty.has(word))
      .map(word => toTerm(stem(word)));

  // How many words two texts have in common, in the same order.
  const countCommon = (one, other) => {
    let row = other.map(() => 0);
    for (const word of one) {
      const next = [];
      for (const [at, each] of other.entries())
        next.push(word === each ? (row[at - 1] ?? 0) + 1 : Math.max(row[at], next[at - 1] ?? 0));
      row = next;
    }
    return row.at(-1) ?? 0;
  };

  // Number of a page → its message that a question quotes, as a whole or in part.
  const findMessages = input => {
    const typed = wordsIn(input).slice(0, MAX_PASTED);
    const best = [];
    const some = new Set(typed);
    for (const { id, page, words } of messages) {
      if (words.filter(word => some.has(word)).length < Math.min(MOST * words.length, MOST * typed.length)) continue;
      const common = countCommon(words, typed);
      const isWhole = common === words.length || (common > 2 && common >= MOST * words.length);
      const isPart = common > 3 && common >= MOST * typed.length;
      const worth = QUOTED * Math.min(common, MAX_QUOTED);
      if ((isWhole || isPart) && worth > (best[page]?.worth ?? 0)) best[page] = { id, worth };
    }
    return best;
  };

  // Number of a page → the best of its sections, or phrases.
  const findBest = (index, terms) => {
    const best = []; // by number of the page
    for (const [number, worth] of index.rank(terms)) {
      const { page, id } = index.documents[number];
      if (worth > (best[page]?.worth ?? 0)) best[page] = { id, worth };
    }
    return best;
  };

  // The best section of each page that has something to say, the best page first.
  const findSections = (input, terms) => {
    const best = findBest(sections, terms);
    const asked = findBest(phrases, [...terms, ...readEmpty(input)]);
    const quoted = findMessages(input);
    const isForName = namesIn(input).some(isInReference);
    const results = pages.rank(terms).map(([number, worth]) => {
      const { id, kind } = pages.documents[number];
      const section = best[number] ?? { id, worth: 0 };
      const factor = isForName ? 1 : (KINDS[kind] ?? 1);
      const phrase = PHRASE_SHARE * (asked[number]?.worth ?? 0);
      const message = quoted[number] ?? { id: section.id, worth: 0 };
      return { id: message.id, worth: (worth + SECTION_SHARE * section.worth + phrase + message.worth) * factor };
    });
    return results.sort((one, other) => other.worth - one.worth).map(({ id }) => id);
  };

  // Where the words of a question are in a text. Tags are left alone.
  const findRanges = (html, stems) => {
    const ranges = [];
    for (const { 0: word, index } of html.matchAll(/<[^>]*>|&#?\w+;|[\p{L}\p{N}]+/gu)) {
      if (ranges.length === MAX_RANGES) break;
      if (!/^[<&]/.test(word) && stems.has(parts.get(word.toLowerCase()) ?? stem(word.toLowerCase())))
        ranges.push({ start: index, end: index + word.length, value: word.length });
    }
    return ranges;
  };

  let last = { id: 0, found: [], stems: new Set() };
  const answer = ({ input, page }) => {
    if (!page) {
      const terms = typeof input === "string" ? readQuestion(input) : [];
      last = {
        id: last.id + 1,
        found: findSections(input, terms),
        stems: new Set(terms.flatMap(each => [...each.keys()])),
      };
    }
    const from = page?.from ?? 0;
    const total = last.found.length;
    const pageAt = start => (start >= 0 && start < total ? { id: last.id, size: PAGE_SIZE, from: start } : undefined);
    const mark = (id, field) => ({ field, value: { highlight: { ranges: findRanges(items[id][field], last.stems) } } });
    return {
      items: last.found
        .slice(from, from + PAGE_SIZE)
        .map(id => ({ id, matches: ["title", "text"].map(field => mark(id, field)) })),
      query: { values: [] },
      pagination: { total, prev: pageAt(from - PAGE_SIZE), next: pageAt(from + PAGE_SIZE) },
    };
  };

  self.onmessage = ({ data: { type, data } }) => {
    if (type === 0) {
      readIndex(data);
      self.postMessage({ type: 1 });
    }
    if (type === 2) self.postMessage({ type: 3, data: answer(data) });
  };
}
