"use strict";
// Requests to the server and its event streams. Knows no fields of any route.

// The page is at <base>/ui, whatever path a proxy put before it.
const BASE = location.pathname.replace(/\/+ui\/*$/, "");

/** What the server answered instead of a stream, or sent in the middle of one. */
class ServerError extends Error {
  constructor(message, { status = null, type = "", retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

/** Post JSON and give each event's object as it comes. Throws ServerError; TypeError if nobody answers. */
async function* postForEvents(path, body, { apiKey, signal }) {
  const headers = { "content-type": "application/json" };
  if (apiKey) headers.authorization = `Bearer ${apiKey}`;
  const response = await fetch(BASE + path, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw await errorOf(response);
  for await (const line of linesOf(response.body)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw eventError(event);
    yield event;
  }
}

async function* linesOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      yield* lines;
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection is given up whether or not that can still be told
  }
}

async function errorOf(response) {
  const text = await response.text();
  const facts = { status: response.status, retryAfter: response.headers.get("retry-after") };
  try {
    const { error, error_type: type, message } = JSON.parse(text);
    return new ServerError(error?.message ?? error ?? message ?? text, { ...facts, type });
  } catch {
    return new ServerError(text.slice(0, 500) || response.statusText, facts);
  }
}

function eventError(event) {
  const { error } = event;
  return new ServerError(error.message ?? error, { type: event.error_type, status: error.http_status_code ?? null });
}
