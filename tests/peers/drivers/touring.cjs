// The tour of the plan, as in touring.py: the same feature in each server that has it.
"use strict";

const STATELESS = "2026-07-28";
const HEARING_SECONDS = 15;
const SHORT_PAGE = 10;
const MOST_CHANGES = 5;
const LISTS = {
  tools: ["listTools", "tools", "name"],
  prompts: ["listPrompts", "prompts", "name"],
  resources: ["listResources", "resources", "uri"],
  templates: ["listResourceTemplates", "resourceTemplates", "uriTemplate"],
};

const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

async function eventually(isThere) {
  for (let again = 0; again < HEARING_SECONDS * 20 && !isThere(); again++) await pause(0.05);
  return isThere();
}

async function tour({ client, call, text, heard, attempt, plan }) {
  const isNew = plan.version === STATELESS;

  const each = (feature, trying) =>
    attempt(
      feature,
      async () => {
        const told = [];
        for (const [server, step] of Object.entries(plan.tour[feature])) {
          const late = pause(30).then(() => "nothing for 30 s");
          const saw = await Promise.race([trying(step).catch(String), late]);
          told.push(saw === true ? server : `${server}: ${saw}`);
        }
        return told.sort();
      },
      90,
    );

  const said = async (step) => text(await call(step.tool, step.arguments));
  const hasText = async (step) => {
    const answer = await said(step);
    return answer.includes(step.says) || answer;
  };
  const hears = async (kind, part) =>
    (await eventually(() => heard.some(([what, of]) => what === kind && of.includes(part)))) || JSON.stringify(heard.slice(-5));
  const reads = async (step) => {
    const found = (await client.readResource({ uri: step.uri })).contents[0].text;
    return found.includes(step.says) || found;
  };

  // 1.x gives one page, 2.x all of them.
  const listed = async (kind) => {
    const [method, several, one] = LISTS[kind];
    const found = [];
    let cursor;
    do {
      const page = await client[method](cursor === undefined ? undefined : { cursor });
      found.push(...page[several].map((item) => item[one]));
      cursor = page.nextCursor;
    } while (cursor !== undefined);
    return found;
  };

  const listening = async (uri, inside) => {
    if (!isNew) {
      if (uri) await client.subscribeResource({ uri });
      return inside();
    }
    const lists = { toolsListChanged: true, promptsListChanged: true, resourcesListChanged: true };
    const subscription = await client.listen({ ...lists, ...(uri ? { resourceSubscriptions: [uri] } : {}) });
    try {
      return await inside();
    } finally {
      await subscription.close();
    }
  };

  const cancellation = async (step) => {
    const guest = `guest-${Math.random().toString(16).slice(2)}`;
    const giving = new AbortController();
    // It is told of the progress, then it gives up.
    await call(step.tool, { guest }, { signal: giving.signal, onprogress: () => giving.abort() }).catch(() => {});
    let answer = "";
    for (let again = 0; again < 50; again++) {
      answer = text(await call(step.asks, {}));
      if (answer.includes(guest)) return true;
      await pause(0.1);
    }
    return answer;
  };

  const progress = async (step) => {
    let seen = [];
    // This client handles a result before the progress that it reads together with it.
    for (let again = 0; again < 10 && seen.length < step.says.length; again++) {
      const now = [];
      await call(step.tool, step.arguments, { onprogress: (one) => now.push(one.progress) });
      if (now.length > seen.length) seen = now;
    }
    return JSON.stringify(seen) === JSON.stringify(step.says) || JSON.stringify(seen);
  };

  if (!isNew) await client.setLoggingLevel("debug");
  await each("each call", hasText);
  await each("each resource", reads);
  await each("templates", async (step) => {
    const names = await listed("templates");
    return names.includes(step.template) ? reads(step) : names;
  });
  await each("each prompt", async (step) => {
    const { messages } = await client.getPrompt({ name: step.prompt, arguments: step.arguments });
    const found = messages.map((message) => message.content.text).join(" ");
    return found.includes(step.says) || found;
  });
  await each("completion", async (step) => {
    const argument = { name: step.argument, value: step.value };
    const { values } = (await client.complete({ ref: step.ref, argument })).completion;
    return JSON.stringify(values) === JSON.stringify(step.says) || values;
  });
  await each("each progress", progress);
  await each("logs", async (step) => {
    await said(step);
    return hears("log", step.says);
  });
  await each("subscriptions", (step) =>
    listening(step.uri, async () => {
      await said(step);
      return hears("updated", step.uri);
    }),
  );
  await each("list changed", (step) =>
    listening(null, async () => {
      heard.length = 0;
      const answer = await said(step);
      let names = [];
      // Others may change a list too. Whoever is told of a change looks again.
      for (let again = 0; again < MOST_CHANGES; again++) {
        const told = await hears("changed", step.kind);
        if (told !== true) return names.length ? names : told;
        heard.length = 0;
        names = await listed(step.kind);
        if (names.some((name) => name.includes(step.says ?? answer))) return true;
      }
      return names;
    }),
  );
  await each("each elicitation", hasText);
  await each("each sampling", hasText);
  await each("roots", hasText);
  await each("cancellation", cancellation);
  // Some tools are there only once their server knows what the client can do.
  await attempt("pages", async () => {
    const names = await listed("tools");
    const steps = Object.values(plan.tour).flatMap((servers) => Object.values(servers));
    const whole = steps.every((step) => step.tool === undefined || names.includes(step.tool));
    return (whole && new Set(names).size === names.length && names.length > SHORT_PAGE) || names;
  });
}

module.exports = { tour };
