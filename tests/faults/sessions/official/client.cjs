// As client.py: the official TypeScript client, of either major version and era. The only argument is the plan.
"use strict";

const fs = require("node:fs");
const { createRequire } = require("node:module");
const readline = require("node:readline");
const { CUT_OFF, patientFetch, pause } = require("./patience.cjs");

const plan = JSON.parse(process.argv[2]);
const load = createRequire(`${plan.package}/`);
const OLD = fs.existsSync(`${plan.package}/node_modules/@modelcontextprotocol/sdk`);
const STATELESS = "2026-07-28";
const isStateless = plan.version === STATELESS;
const sdk = (path, name) => load(`@modelcontextprotocol/${OLD ? `sdk/client/${path}.js` : "client"}`)[name];
const types = OLD ? load("@modelcontextprotocol/sdk/types.js") : {};

const CALL_SECONDS = 150;
const HEARING_SECONDS = 60;
const PAUSE = 150;
const AWAY = "The store cannot be reached";
const KINDS = ["echo", "count", "count", "ask", "ask", "touch", "announce"];
// A stream that is cut is resumed as often as it is cut; what fails meanwhile is repeated by `fetch`.
const RECONNECTING = { initialReconnectionDelay: 100, maxReconnectionDelay: 1000, reconnectionDelayGrowFactor: 1.5, maxRetries: 50 };
const counts = { answered: 0, told: 0, cut: 0, refused: 0, resumed: 0, events: 0, updates: 0, announced: 0, perhaps_announced: 0 };

const tell = (said) => console.log(JSON.stringify(said));
const problem = (text) => tell({ problem: text });
const any = (several) => several[Math.floor(Math.random() * several.length)];

async function eventually(isThere) {
  for (let again = 0; again < HEARING_SECONDS * 20 && !isThere(); again++) await pause(50);
  return isThere();
}

function later() {
  let done;
  const promise = new Promise((resolve) => (done = resolve));
  return { promise, done };
}

class Talker {
  constructor(name) {
    this.name = name;
    this.lost = [];
    this.logs = new Map();
    this.updates = new Map();
    this.lists = 0;
    this.numbers = 0;
  }

  async open() {
    const negotiation = OLD ? {} : { versionNegotiation: { mode: isStateless ? { pin: STATELESS } : "legacy" } };
    const options = { capabilities: { elicitation: { form: {} } }, ...negotiation };
    this.client = new (sdk("index", "Client"))({ name: this.name, version: "1.0.0" }, options);
    this.client.setRequestHandler(OLD ? types.ElicitRequestSchema : "elicitation/create", async (request) => {
      await pause(any([0, 0, 200, 1000]));
      return { action: "accept", content: { value: `${this.name} ${request.params.message}` } };
    });
    const hear = (method, schema, note) =>
      this.client.setNotificationHandler(OLD ? types[schema] : method, (heard) => void note(heard.params));
    hear("notifications/message", "LoggingMessageNotificationSchema", ({ data }) => {
      const at = data.lastIndexOf(" ");
      const token = data.slice(0, at);
      this.logs.set(token, [...(this.logs.get(token) ?? []), Number(data.slice(at + 1))]);
    });
    hear("notifications/resources/updated", "ResourceUpdatedNotificationSchema", ({ uri }) => {
      this.updates.set(uri, (this.updates.get(uri) ?? 0) + 1);
    });
    hear("notifications/prompts/list_changed", "PromptListChangedNotificationSchema", () => (this.lists += 1));
    const Http = sdk("streamableHttp", "StreamableHTTPClientTransport");
    const fetch = patientFetch(counts, this.lost);
    await this.client.connect(new Http(new URL(plan.url), { fetch, reconnectionOptions: RECONNECTING }));
  }

  // The text of a result. null: the call was interrupted, and this client was told, or it was cut off.
  async call(name, args) {
    const options = { timeout: CALL_SECONDS * 1000 };
    const level = isStateless ? { _meta: { "io.modelcontextprotocol/logLevel": "debug" } } : {};
    const params = { name, arguments: args, ...level };
    let result;
    try {
      result = await (OLD ? this.client.callTool(params, undefined, options) : this.client.callTool(params, options));
    } catch (error) {
      this.notAnswered(name, error);
      return null;
    }
    const text = result.content.map((block) => block.text).join(" ");
    if (result.isError) {
      if (!text.startsWith(AWAY)) problem(`${this.name}: ${name}: ${text}`);
      counts.refused += 1;
      return null;
    }
    counts.answered += 1;
    return text;
  }

  // Whether the client was told that it must ask again.
  notAnswered(what, error) {
    const isCut = error.code === CUT_OFF;
    const isTold = error.data?.type === "interrupted";
    if (isCut) counts.cut += 1;
    else if (isTold) counts.told += 1;
    else problem(`${this.name}: ${what}: ${error.code} ${error}`);
    return isCut || isTold;
  }

  async repeat(what, asking) {
    for (;;) {
      try {
        return await asking();
      } catch (error) {
        if (!this.notAnswered(what, error)) return undefined;
      }
    }
  }

  token() {
    this.numbers += 1;
    return `${this.name}/${this.numbers}`;
  }

  async echo(token) {
    const text = await this.call("echo", { text: token });
    if (text !== null && text !== token) problem(`${this.name}: echo ${token} got ${text}`);
  }

  async ask(token) {
    const text = await this.call("ask", { token });
    if (text !== null && text !== `${this.name} ${token}`) problem(`${this.name}: the answer to ${token} was ${text}`);
  }

  async announce(token) {
    counts[(await this.call("announce", { token })) !== null ? "announced" : "perhaps_announced"] += 1;
  }

  async count(token) {
    const total = 1 + Math.floor(Math.random() * 60);
    const text = await this.call("count", { total, token });
    const heard = () => this.logs.get(token) ?? [];
    if (text !== null) await eventually(() => heard().length >= total);
    const numbers = heard();
    this.logs.delete(token);
    counts.events += numbers.length;
    if (numbers.some((number, place) => number !== place) || (text !== null && numbers.length !== total))
      problem(`${this.name}: of ${total} events of ${token}, whose result is ${text}, came ${numbers}`);
  }

  async touch(token) {
    const uri = `memo://${token}`;
    const heard = () => this.updates.get(uri) ?? 0;
    let isCut = () => false;
    let close = () => this.repeat("unsubscribe", () => this.client.unsubscribeResource({ uri }));
    if (isStateless) {
      const listening = await this.repeat("listen", () => this.client.listen({ resourceSubscriptions: [uri] }));
      let ended = false;
      Promise.resolve(listening.closed).then(() => (ended = true), () => (ended = true));
      isCut = () => ended;
      close = () => Promise.resolve(listening.close()).catch(() => {});
    } else {
      await this.repeat("subscribe", () => this.client.subscribeResource({ uri }));
    }
    const text = await this.call("touch", { uri });
    if (text !== null && !(await eventually(() => heard() > 0 || isCut()))) problem(`${this.name} was not told of ${uri}`);
    counts.updates += heard();
    if (isCut()) counts.cut += 1;
    await close();
  }

  async talk(over) {
    while (!over()) {
      await this[any(KINDS)](this.token());
      await pause(Math.random() * 2 * PAUSE);
    }
  }

  close() {
    for (const [uri, times] of this.updates) if (times > 1) problem(`${this.name} was told of ${uri} ${times} times`);
    for (const said of this.lost) problem(`${this.name} is not known any more: ${said}`);
    if (!isStateless) tell({ lists: [this.name, this.lists] });
  }
}

async function main() {
  const phases = [later(), later(), later()];
  let isOver = false;
  phases[1].promise.then(() => (isOver = true));
  const waiting = [...phases];
  readline.createInterface({ input: process.stdin }).on("line", () => waiting.shift()?.done());
  const talkers = Array.from({ length: plan.clients }, (_, number) => new Talker(`${plan.name}.${number}`));
  for (const talker of talkers) await talker.open();
  tell({ ready: true });
  await phases[0].promise;
  await Promise.all(
    talkers.map(async (talker) => {
      // Two at a time: answers and events of one must not reach the other.
      await Promise.all([talker.talk(() => isOver), talker.talk(() => isOver)]);
      tell({ quiet: talker.name });
      await phases[2].promise;
      await talker.echo(talker.token());
      talker.close();
    }),
  );
  tell({ counts });
}

main().then(
  () => process.exit(0),
  (error) => {
    problem(`${plan.name} is lost: ${error.stack}`);
    process.exit(1);
  },
);
