// As patience.py, for the official TypeScript client: `fetch` that repeats what may be repeated.
"use strict";

const CUT_OFF = -32077;
const PAUSE = 100;
const PASSING = [503, 409];

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const cutOff = (id) => ({ jsonrpc: "2.0", id, error: { code: CUT_OFF, message: "the connection was cut" } });
const isType = (response, type) => (response.headers.get("content-type") ?? "").startsWith(type);

// `counts.resumed` counts the requests with an event id; `lost` gets what the server said of one, or of a session, that
// it does not know.
function patientFetch(counts, lost) {
  return async function (url, init) {
    const message = init?.body ? JSON.parse(init.body) : {};
    const isCall = "method" in message && "id" in message;
    counts.resumed += new Headers(init?.headers).has("last-event-id") ? 1 : 0;
    for (;;) {
      let response, body;
      try {
        response = await fetch(url, init);
        body = isType(response, "text/event-stream") ? null : await response.text();
      } catch (error) {
        if (init?.signal?.aborted) throw error;
        if (isCall) return Response.json(cutOff(message.id));
        await pause(PAUSE);
        continue;
      }
      if (PASSING.includes(response.status)) {
        await pause(PAUSE);
        continue;
      }
      if (response.status === 404) lost.push(`${message.method ?? init?.method}: ${body}`);
      const { status, headers } = response;
      const given = body === null ? quiet(response.body, isCall ? message.id : null) : body === "" ? null : body;
      return new Response(given, { status, headers });
    }
  };
}

// The events of a response. If it is cut before a call has an id to resume with, its last event says so.
function quiet(stream, call) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let block = "";
  let hasId = false;
  return new ReadableStream({
    async pull(controller) {
      for (;;) {
        let read;
        try {
          read = await reader.read();
        } catch {
          if (call !== null && !hasId) controller.enqueue(Buffer.from(`data: ${JSON.stringify(cutOff(call))}\n\n`));
          return controller.close();
        }
        if (read.done) return controller.close();
        block += decoder.decode(read.value, { stream: true });
        const end = block.lastIndexOf("\n\n");
        if (end < 0) continue;
        const whole = block.slice(0, end + 2);
        block = block.slice(end + 2);
        hasId = hasId || `\n${whole}`.includes("\nid: ");
        return controller.enqueue(Buffer.from(whole));
      }
    },
    cancel: (reason) => reader.cancel(reason),
  });
}

module.exports = { CUT_OFF, patientFetch, pause };
