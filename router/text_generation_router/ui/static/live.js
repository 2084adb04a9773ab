"use strict";
// The live view: reads /metrics once a second while the page is seen, and draws what changed. The only place that knows
// metrics by name; a series that a server does not have leaves its number out.

const POLL_MS = 1000;
const TIMEOUT_MS = 4000;
const KEPT_READINGS = 121; // two minutes
const WINDOW_MS = 60_000; // of latencies, hits and failures
const SHORT_WINDOW_MS = 10_000; // of the lines of latencies

const GAUGES = ["tgi_queue_size", "tgi_batch_current_size", "tgi_kv_blocks", "tgi_kv_blocks_free", "tgi_kv_blocks_cached"];
const COUNTERS = [
  "tgi_prefix_cache_hit_tokens",
  "tgi_batch_preemptions",
  "tgi_batch_inference_count",
  "tgi_request_success",
  "tgi_request_failure",
  "tgi_request_input_length_sum",
];
// TGI's record of speculation has one entry a token, which makes it the one count of tokens that grows while they come.
const TOKENS = "tgi_request_skipped_tokens_count";
const FIRST_TOKEN = "tgi_request_time_to_first_token_duration";
const BETWEEN_TOKENS = "tgi_request_inter_token_duration";
const LATENCIES = [
  { title: "First token", name: FIRST_TOKEN },
  { title: "Between tokens", name: BETWEEN_TOKENS },
  { title: "Whole request", name: "tgi_request_duration" },
  { title: "In the queue", name: "tgi_request_queue_duration" },
  { title: "Prompt step", name: "tgi_batch_inference_duration", labels: { method: "prefill" } },
  { title: "Decode step", name: "tgi_batch_inference_duration", labels: { method: "decode" } },
  { title: "– on the device", name: "tgi_step_device_duration" },
  { title: "– on the wire", name: "tgi_step_wire_duration" },
  { title: "– text", name: "tgi_step_text_duration" },
];
const WANTED = new Set([
  ...GAUGES,
  ...COUNTERS,
  TOKENS,
  ...LATENCIES.flatMap(({ name }) => [`${name}_bucket`, `${name}_count`]),
]);

class LiveView {
  /** `onInfo(info)` is called with /info when the server is first reached, and whenever it has been started anew. */
  constructor(onInfo) {
    this.onInfo = onInfo;
    this.readings = []; // {time, samples}, oldest first
    this.lines = new Map(); // sparkline key to its numbers, one a reading
    this.lost = null; // when the server stopped answering
    this.hasInfo = false;
    this.timer = 0;
    this.cards = new Cards(find("cards"));
    document.addEventListener("visibilitychange", () => this.wake());
    this.wake();
  }

  wake() {
    clearTimeout(this.timer);
    if (document.visibilityState === "visible") this.poll();
  }

  async poll() {
    clearTimeout(this.timer);
    const started = performance.now();
    try {
      const text = await (await this.get("/metrics")).text();
      this.take(parseExposition(text, (name) => WANTED.has(name)), performance.now());
      if (!this.hasInfo) {
        this.showInfo(await (await this.get("/info")).json());
        this.hasInfo = true;
      }
      this.lost = null;
    } catch (error) {
      this.lost ??= Date.now();
      this.hasInfo = false;
      this.showLost(error);
    }
    if (document.visibilityState !== "visible") return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), Math.max(100, POLL_MS - (performance.now() - started)));
  }

  async get(path) {
    const response = await fetch(BASE + path, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!response.ok) throw new Error(`${path} answered ${response.status}`);
    return response;
  }

  take(samples, time) {
    const last = this.readings.at(-1);
    const hasRestarted = last && COUNTERS.some((name) => total(samples, name) < total(last.samples, name));
    if (hasRestarted) this.hasInfo = false;
    if (hasRestarted || (last && time - last.time > SHORT_WINDOW_MS)) {
      this.readings = [];
      this.lines.clear();
    }
    this.readings.push({ time, samples });
    if (this.readings.length > KEPT_READINGS) this.readings.shift();
    this.draw(samples);
  }

  /** The oldest reading not older than this. */
  since(ageMs) {
    const { time } = this.readings.at(-1);
    return this.readings.find((reading) => time - reading.time <= ageMs);
  }

  line(key, value) {
    if (!this.lines.has(key)) this.lines.set(key, []);
    const line = this.lines.get(key);
    line.push(value);
    if (line.length > KEPT_READINGS) line.shift();
    return line;
  }

  draw(now) {
    const before = this.since(WINDOW_MS).samples;
    const running = total(now, "tgi_batch_current_size") ?? NaN;
    const queued = total(now, "tgi_queue_size") ?? NaN;
    const rate = this.tokenRate(now);
    const { cards } = this;
    cards.requests(running, queued, this.line("running", running), this.line("queued", queued));
    cards.rate(rate, this.line("rate", rate));
    cards.cache(cacheUse(now), (use) => this.line("cache", use));
    cards.latencies(LATENCIES.map((latency) => this.latency(now, before, latency)));
    const last = (this.readings.at(-2) ?? this.readings[0]).samples;
    cards.reuse(
      growth(now, before, "tgi_prefix_cache_hit_tokens"),
      growth(now, before, "tgi_request_input_length_sum"),
      total(now, "tgi_prefix_cache_hit_tokens"),
      this.line("hits", growth(now, last, "tgi_prefix_cache_hit_tokens")),
    );
    cards.outcomes(
      growth(now, before, "tgi_request_success"),
      failures(now, before),
      this.line("finished", growth(now, last, "tgi_request_success")),
    );
    cards.preemptions(
      growth(now, before, "tgi_batch_preemptions"),
      total(now, "tgi_batch_preemptions"),
      this.line("preempted", growth(now, last, "tgi_batch_preemptions")),
    );
    showReplicas(now);
    find("pulse").dataset.state = "live";
    find("pulse").title = "";
    find("pulse-text").textContent = `${quantity(running)} running · ${quantity(queued)} queued`;
    find("pulse-rate").textContent = ` · ${quantity(rate)} tokens/s`;
  }

  /** Tokens a second since the last reading. */
  tokenRate(now) {
    const last = this.readings.at(-2);
    if (!last) return 0;
    const passed = (this.readings.at(-1).time - last.time) / 1000;
    const tokens = growth(now, last.samples, TOKENS);
    if (tokens !== undefined) return tokens / passed;
    const later = growth(now, last.samples, `${BETWEEN_TOKENS}_count`);
    const first = growth(now, last.samples, `${FIRST_TOKEN}_count`);
    if (later !== undefined) return (later + (first ?? 0)) / passed;
    // Without a count of tokens: a decode step makes one for each running sequence.
    const steps = growth(now, last.samples, "tgi_batch_inference_count", { method: "decode" }) ?? 0;
    return (steps * Math.max(1, total(now, "tgi_batch_current_size") ?? 0)) / passed;
  }

  latency(now, before, { title, name, labels }) {
    const quantiles = quantilesBetween(now, before, name, [0.5, 0.95], labels) ?? [NaN, NaN];
    const recent = quantilesBetween(now, this.since(SHORT_WINDOW_MS).samples, name, [0.5], labels) ?? [NaN];
    return { title, quantiles, line: this.line(title, recent[0]) };
  }

  showInfo(info) {
    find("model").textContent = info.model_id;
    find("model").title = info.model_id;
    document.title = `${info.model_id.split("/").at(-1)} – text generation`;
    find("facts").textContent = `${info.model_dtype.replace("torch.", "")} · ${info.model_device_type}`;
    const limits = {
      Model: info.model_id,
      Revision: info.model_sha,
      "Longest prompt": `${info.max_input_tokens} tokens`,
      "Prompt and answer": `${info.max_total_tokens} tokens`,
      "Tokens in the cache": info.max_batch_total_tokens,
      "Requests at a time": info.max_concurrent_requests,
      "Stop strings": info.max_stop_sequences,
      "Most alternatives": info.max_top_n_tokens,
      Server: info.server_version,
      "API version": info.version,
    };
    const rows = Object.entries(limits).filter(([, value]) => value !== null && value !== undefined);
    find("limits")
      .querySelector("dl")
      .replaceChildren(...rows.map(([title, value]) => make("div", "", make("dt", "", title), make("dd", "", String(value)))));
    this.onInfo(info);
  }

  showLost(error) {
    find("pulse").dataset.state = "lost";
    const lostS = Math.round((Date.now() - this.lost) / 1000);
    find("pulse-text").textContent = `no answer from the server for ${lostS} s`;
    find("pulse-rate").textContent = "";
    find("pulse").title = error.message;
  }
}

function cacheUse(samples, labels = {}) {
  const blocks = total(samples, "tgi_kv_blocks", labels);
  if (!blocks) return null;
  const cached = total(samples, "tgi_kv_blocks_cached", labels) ?? 0;
  const free = total(samples, "tgi_kv_blocks_free", labels) ?? 0;
  return { blocks, cached, used: blocks - cached - free };
}

/** Reasons of failed requests and how many had each, in the window. */
function failures(now, before) {
  const reasons = new Set((now.get("tgi_request_failure") ?? []).map((sample) => sample.labels.err));
  return [...reasons]
    .map((err) => [err, growth(now, before, "tgi_request_failure", { err })])
    .filter(([, count]) => count > 0);
}

/** One row a replica, where the server tells them apart. */
function showReplicas(samples) {
  const names = new Set(GAUGES.flatMap((name) => (samples.get(name) ?? []).map(({ labels }) => labels.replica)));
  names.delete(undefined);
  const box = find("replicas");
  box.hidden = names.size < 2;
  if (box.hidden) return;
  const rows = [...names].sort().map((replica) => {
    const use = cacheUse(samples, { replica });
    const cells = [
      total(samples, "tgi_batch_current_size", { replica }),
      total(samples, "tgi_queue_size", { replica }),
      use ? percent(use.used / use.blocks) : "–",
    ];
    return make("tr", "", make("th", "", replica), ...cells.map((cell) => make("td", "", String(cell ?? "–"))));
  });
  const head = make("tr", "", ...["Replica", "Running", "Queued", "Cache"].map((title) => make("th", "", title)));
  box.replaceChildren(make("table", "", make("thead", "", head), make("tbody", "", ...rows)));
}

/** The cards, made once; what changes are text nodes, widths and the points of lines. */
class Cards {
  constructor(box) {
    this.box = box;
    this.numbers = {};
    this.sparks = {};
    this.card("Requests", ["running", "queued"], "requests", 2);
    this.card("Tokens per second", ["rate"], "rate", 1);
    this.card("KV cache", ["use"], "cache", 1, this.cacheBar());
    this.latencyCard();
    this.card("Prompt tokens found cached", ["reuse"], "reuse", 1);
    this.card("Finished", ["outcomes"], "outcomes", 1);
    this.card("Preempted", ["preempted"], "preempted", 1);
  }

  card(title, numbers, spark, lines, ...more) {
    const values = make("p", "values");
    numbers.forEach((name, index) => {
      this.numbers[name] = make("b", "", "–");
      this.numbers[`${name}-note`] = make("span", "muted", "");
      values.append(make("span", index ? "second" : "", this.numbers[name], " ", this.numbers[`${name}-note`]));
    });
    const card = make("section", "card", make("h2", "", title), values, ...more);
    if (spark) card.append((this.sparks[spark] = new Sparkline(lines)).element);
    this.box.append(card);
  }

  cacheBar() {
    this.used = make("i", "used");
    this.cached = make("i", "cached");
    return make("p", "stack", this.used, this.cached);
  }

  latencyCard() {
    const head = make("tr", "", ...["", "p50", "p95", ""].map((title) => make("th", "", title)));
    const body = make("tbody");
    this.rows = LATENCIES.map(({ title }) => {
      const row = { p50: make("td", "", "–"), p95: make("td", "", "–"), spark: new Sparkline(1, false) };
      const name = make("th", "", title);
      name.scope = "row";
      body.append(make("tr", "", name, row.p50, row.p95, make("td", "line", row.spark.element)));
      return row;
    });
    const title = make("h2", "", "Latency ", make("span", "muted", "last minute"));
    this.box.append(make("section", "card wide", title, make("table", "", make("thead", "", head), body)));
  }

  set(name, value, note) {
    this.numbers[name].textContent = value;
    this.numbers[`${name}-note`].textContent = note;
    this.numbers[`${name}-note`].title = note;
  }

  requests(running, queued, ...lines) {
    this.set("running", quantity(running), "running");
    this.set("queued", quantity(queued), "queued");
    this.sparks.requests.draw(lines, quantity);
  }

  rate(rate, line) {
    this.set("rate", quantity(rate), "");
    this.sparks.rate.draw([line], quantity);
  }

  cache(use, lineOf) {
    if (!use) return;
    const share = use.used / use.blocks;
    this.set("use", percent(share), `in use · ${percent(use.cached / use.blocks)} cached`);
    this.used.style.width = `${share * 100}%`;
    this.cached.style.width = `${(use.cached / use.blocks) * 100}%`;
    this.sparks.cache.draw([lineOf(share)], percent);
  }

  latencies(found) {
    found.forEach(({ quantiles, line }, index) => {
      const row = this.rows[index];
      row.p50.textContent = seconds(quantiles[0]);
      row.p95.textContent = seconds(quantiles[1]);
      row.spark.draw([line]);
    });
  }

  reuse(hits, prompts, ever, line) {
    this.set("reuse", percent(hits / prompts), ever === undefined ? "" : `last minute · ${quantity(ever)} in all`);
    this.sparks.reuse.draw([line], quantity);
  }

  outcomes(finished, failures, line) {
    const failed = failures.map(([reason, count]) => ` · ${count} failed: ${reason}`).join("");
    this.set("outcomes", quantity(finished ?? 0), `last minute${failed}`);
    this.sparks.outcomes.draw([line], quantity);
  }

  preemptions(recent, ever, line) {
    this.set("preempted", quantity(recent ?? NaN), ever === undefined ? "" : `last minute · ${quantity(ever)} in all`);
    this.sparks.preempted.draw([line], quantity);
  }
}

/** Lines of the last two minutes, newest at the right edge, from zero to the highest number seen. */
class Sparkline {
  constructor(count, hasPeak = true) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${KEPT_READINGS - 1} 30`);
    svg.setAttribute("preserveAspectRatio", "none");
    this.paths = Array.from({ length: count }, (_, index) => {
      const path = document.createElementNS(svg.namespaceURI, "path");
      path.setAttribute("class", `line${index}`);
      svg.append(path);
      return path;
    });
    this.peak = make("span", "peak muted");
    this.element = make("div", "spark", svg);
    this.element.setAttribute("aria-hidden", "true");
    if (hasPeak) this.element.append(this.peak);
  }

  draw(lines, format = String) {
    const peak = Math.max(0, ...lines.flat().filter(Number.isFinite));
    this.peak.textContent = peak > 0 ? `peak ${format(peak)}` : "";
    lines.forEach((line, index) => {
      const start = KEPT_READINGS - line.length;
      let path = "";
      let isDown = false;
      line.forEach((value, place) => {
        if (Number.isFinite(value)) path += `${isDown ? "L" : "M"}${start + place} ${(29 - (value / (peak || 1)) * 27).toFixed(1)}`;
        isDown = Number.isFinite(value);
      });
      this.paths[index].setAttribute("d", path);
    });
  }
}
