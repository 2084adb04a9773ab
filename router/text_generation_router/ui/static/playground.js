"use strict";
// Prompt and chat: one run at a time, its answer, and the way back. Knows the playground's elements.

const REASONS = {
  length: "the limit of new tokens was reached",
  eos_token: "the model ended it",
  stop_sequence: "a stop string came",
  stop: "the model ended it, or a stop string came",
};
const COUNTS_MS = 200; // how often the numbers beside a running answer change

class Playground {
  constructor() {
    this.form = find("parameters");
    this.running = null; // AbortController of the run
    this.model = "tgi";
    this.history = { prompt: [], chat: [] }; // what Undo returns to
    this.messages = []; // of the chat: {role, text} and {role, view}
    this.alternatives = new Alternatives(find("alternatives"), (view, index, token) => this.pick(view, index, token));
    followEnd(find("answer"));
    followEnd(find("messages"));
    this.answer = this.newView(find("answer").querySelector(".text"), find("answer"));
    find("run").addEventListener("click", () => (this.running ? this.stop() : this.run()));
    find("continue").addEventListener("click", () => this.continue());
    find("undo").addEventListener("click", () => this.undo());
    find("copy").addEventListener("click", () => this.copy(this.lastView?.text() ?? "", "answer"));
    find("curl").addEventListener("click", () => this.copy(curlCommand(this.request(true)), "command"));
    find("shade").addEventListener("change", () => this.showSettings());
    this.form.addEventListener("input", () => this.showSettings());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    document.addEventListener("keydown", (event) => this.shortcut(event));
    this.restore();
    this.showMessages();
    this.refresh();
  }

  newView(element, scroller) {
    const view = new TokenView(element, scroller);
    this.alternatives.watch(element, scroller);
    return view;
  }

  get mode() {
    return document.body.dataset.view === "chat" ? "chat" : "prompt";
  }

  get lastView() {
    if (this.mode === "prompt") return this.answer.records.length ? this.answer : undefined;
    return this.messages.findLast((message) => message.view)?.view;
  }

  shortcut(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      if (!this.running) this.run();
    } else if (event.key === "Escape") {
      if (this.running) this.stop();
      else if (this.alternatives.isOpen) this.alternatives.close();
    }
  }

  /** Another view is shown. */
  turn() {
    this.alternatives.hide();
    if (!this.running) {
      this.say("");
      find("counts").textContent = "";
      this.showProblem(null);
    }
    this.refresh();
  }

  // Settings

  settings() {
    const fields = this.form.elements;
    const number = (name) => (fields[name].value.trim() === "" ? null : fields[name].valueAsNumber);
    const names = [...SAMPLING_ONLY, "repetition_penalty", "max_new_tokens", "top_n_tokens"];
    const lines = fields.stop.value.split("\n").filter((line) => line !== "");
    return {
      do_sample: fields.do_sample.value === "true",
      ...Object.fromEntries(names.map((name) => [name, number(name)])),
      stop: lines.map((line) => line.replace(/\\([nt\\])/g, (_, mark) => ({ n: "\n", t: "\t", "\\": "\\" })[mark])),
    };
  }

  showSettings() {
    const settings = this.settings();
    for (const field of this.form.querySelectorAll("[data-sampling]")) field.disabled = !settings.do_sample;
    for (const field of this.form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
    document.body.classList.toggle("shaded", find("shade").checked);
    const length = settings.max_new_tokens === null ? "" : `, ${settings.max_new_tokens} tokens`;
    find("settings-summary").textContent = (settings.do_sample ? "sampled" : "most likely") + length;
    this.save();
  }

  save() {
    const fields = [...this.form.elements].filter((field) => field.name && (field.type !== "radio" || field.checked));
    const values = Object.fromEntries(fields.map((field) => [field.name, field.value]));
    localStorage.setItem("parameters", JSON.stringify({ ...values, shade: find("shade").checked }));
  }

  restore() {
    const { shade = false, ...values } = JSON.parse(localStorage.getItem("parameters") ?? "{}");
    for (const [name, value] of Object.entries(values)) if (this.form.elements[name]) this.form.elements[name].value = value;
    find("shade").checked = shade;
    const key = sessionStorage.getItem("api-key");
    if (key) this.askForKey(key);
    this.showSettings();
  }

  setInfo(info) {
    this.model = info.model_id;
    const field = this.form.elements.top_n_tokens;
    field.max = info.max_top_n_tokens;
    if (field.valueAsNumber > info.max_top_n_tokens) field.value = info.max_top_n_tokens;
  }

  // Runs

  /** The request that Run would send, or for `sample` one like it when there is nothing to send yet. */
  request(sample = false) {
    const settings = this.settings();
    if (this.mode === "prompt") return promptRequest(find("prompt").value, settings);
    const messages = this.chatMessages();
    if (sample && find("message").value) messages.push({ role: "user", content: find("message").value });
    return chatRequest(messages, settings, this.model);
  }

  chatMessages() {
    const system = find("system").value;
    const messages = this.messages.map(({ role, text, view }) => ({ role, content: view ? view.text() : text }));
    return system ? [{ role: "system", content: system }, ...messages] : messages;
  }

  run() {
    this.remember();
    if (this.mode === "prompt") {
      this.answer.reset([]);
      return this.stream(this.request(), this.answer);
    }
    const box = find("message");
    if (box.value || !this.messages.length) {
      this.messages.push({ role: "user", text: box.value });
      box.value = "";
    } else if (this.messages.at(-1).view) {
      this.messages.pop(); // nothing new was said: another answer to the same
    }
    const request = this.request();
    this.messages.push({ role: "assistant", view: null });
    this.showMessages();
    return this.stream(request, this.messages.at(-1).view);
  }

  continue() {
    if (this.running || !this.lastView) return;
    this.remember();
    this.goOn();
  }

  /** Go on from the answer as it stands. */
  goOn() {
    const view = this.lastView;
    if (this.mode === "chat") return this.stream(this.request(), view);
    return this.stream(promptRequest(find("prompt").value + view.text(), this.settings()), view);
  }

  /** Put another token into an answer and go on from there. */
  pick(view, index, token) {
    this.abandon();
    this.remember();
    const { top } = view.records[index];
    const picked = { ...token, special: false, picked: true, top };
    if (this.mode === "chat") this.messages.length = this.messages.findIndex((message) => message.view === view) + 1;
    view.reset([...view.records.slice(0, index), picked]);
    if (this.mode === "chat") this.showMessages();
    const answer = this.lastView;
    answer.focus(index);
    this.alternatives.hide();
    this.goOn();
  }

  stop() {
    this.running?.abort();
  }

  /** Stop, without waiting for the end of it. */
  abandon() {
    this.stop();
    this.running = null;
  }

  async stream({ path, body }, view) {
    const controller = (this.running = new AbortController());
    const read = this.mode === "chat" ? readChatEvent : readPromptEvent;
    const counts = new Counts(view);
    const live = view.element;
    live.setAttribute("aria-busy", "true");
    view.scroller.followsEnd = true;
    view.onFrame = () => counts.show();
    this.showProblem(null);
    this.say("Generating");
    this.refresh();
    let outcome = "The stream ended early.";
    try {
      const options = { apiKey: find("api-key").value, signal: controller.signal };
      for await (const event of postForEvents(path, body, options)) {
        const { records, ending } = read(event);
        for (const record of records) view.append(record);
        counts.add(records.length);
        if (ending) counts.finish(ending);
        if (ending?.reason) outcome = `Done: ${REASONS[ending.reason] ?? ending.reason}.`;
      }
    } catch (error) {
      outcome = controller.signal.aborted ? "Stopped." : "";
      if (!controller.signal.aborted) this.showProblem(error);
    }
    if (this.running !== controller) return; // the next run has begun, perhaps in the same answer
    this.running = null;
    view.flush();
    view.onFrame = () => {};
    counts.show(true);
    live.setAttribute("aria-busy", "false");
    this.say(outcome);
    this.refresh();
  }

  // What was before

  remember() {
    this.history[this.mode].push(this.mode === "prompt" ? this.answer.records.slice() : this.chatState());
  }

  chatState() {
    const messages = this.messages.map(({ role, text, view }) => ({ role, text, records: view?.records.slice() }));
    return { messages, draft: find("message").value };
  }

  undo() {
    this.abandon();
    const before = this.history[this.mode].pop();
    if (!before) return;
    if (this.mode === "prompt") {
      this.answer.reset(before);
    } else {
      this.messages = before.messages;
      this.showMessages();
      find("message").value ||= before.draft;
    }
    this.alternatives.hide();
    this.showProblem(null);
    this.say("Undone.");
    find("counts").textContent = "";
    this.refresh();
  }

  async copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
      this.say(`The ${what} is copied.`);
    } catch {
      this.say(`The browser did not let the ${what} be copied.`);
    }
  }

  // Elements

  showMessages() {
    const items = this.messages.map((message) => {
      const body = make("div", "text");
      body.dir = "auto";
      const item = make("article", message.role, make("h3", "", message.role), body);
      if (message.role !== "assistant") {
        body.textContent = message.text;
        return item;
      }
      body.setAttribute("aria-live", "polite");
      const records = message.view?.records ?? message.records ?? [];
      message.view = this.newView(body, find("messages"));
      message.view.reset(records);
      return item;
    });
    if (!items.length) items.push(make("p", "muted", "What you and the model say appears here."));
    find("messages").replaceChildren(...items);
    find("messages").scrollTop = find("messages").scrollHeight;
  }

  refresh() {
    const isRunning = this.running !== null;
    find("run").textContent = isRunning ? "Stop" : this.mode === "chat" ? "Send" : "Run";
    find("run").classList.toggle("running", isRunning);
    document.body.classList.toggle("busy", isRunning);
    find("continue").disabled = isRunning || !this.lastView;
    find("undo").disabled = isRunning || !this.history[this.mode].length;
    find("copy").disabled = !this.lastView;
  }

  say(text) {
    find("status").textContent = text;
  }

  showProblem(error) {
    const box = find("problem");
    if (!error) return box.replaceChildren();
    const isServers = error instanceof ServerError;
    const what = isServers ? error.message : `No answer from the server (${error.message}).`;
    const more = [];
    if (error.status) more.push(`status ${error.status}`);
    if (error.type) more.push(error.type);
    if (error.retryAfter) more.push(`try again in ${error.retryAfter} s`);
    box.replaceChildren(make("b", "", what), make("span", "", more.join(" · ")));
    for (const field of this.form.elements) {
      if (field.name && isServers && what.includes("`" + field.name + "`")) field.setAttribute("aria-invalid", "true");
    }
    if (error.status === 401) {
      box.append(make("span", "", "Enter the API key under Parameters and run again."));
      this.askForKey();
    }
  }

  askForKey(known = "") {
    const box = find("api-key");
    find("key-field").hidden = false;
    if (known) box.value = known;
    else {
      find("settings").open = true;
      box.focus();
    }
    box.oninput = () => sessionStorage.setItem("api-key", box.value);
  }
}

/** The numbers of one run. */
class Counts {
  constructor(view) {
    this.view = view;
    this.started = performance.now();
    this.first = null;
    this.last = null;
    this.tokens = 0;
    this.ending = {};
    this.shown = 0;
  }

  add(count) {
    if (!count) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.tokens += count;
  }

  finish(ending) {
    this.ending = { ...this.ending, ...ending };
  }

  show(isFinal = false) {
    const now = performance.now();
    if (!isFinal && now - this.shown < COUNTS_MS) return;
    this.shown = now;
    const parts = this.tokens ? [plural(this.tokens, "token")] : [];
    if (this.tokens > 1) parts.push(`${quantity(((this.tokens - 1) / (this.last - this.first)) * 1000)} tokens/s`);
    if (this.first) parts.push(`first after ${seconds((this.first - this.started) / 1000)}`);
    const { promptTokens, seed } = this.ending;
    if (promptTokens !== undefined) parts.push(`prompt ${promptTokens}`);
    if (seed !== undefined && seed !== null) parts.push(`seed ${seed}`);
    find("counts").textContent = parts.join(" · ");
  }
}
