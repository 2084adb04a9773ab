"use strict";
// An answer as a row of tokens that can be looked at one by one. Knows nothing about requests.
//
// A record is {text, id, logprob, special, top: [{text, id, logprob, special}]}. Records are taken at any rate and
// become elements once a frame; what a frame costs depends on the new tokens only. Long answers are cut into blocks at
// line ends, so that the browser lays out the last block again and not the whole answer.

const BLOCK_TOKENS = 150;

class TokenView {
  /** `element` holds the tokens, `scroller` is kept at its end while the reader has it there. */
  constructor(element, scroller) {
    this.element = element;
    this.scroller = scroller;
    this.records = [];
    this.spans = [];
    this.onFrame = () => {};
    this.block = null;
    this.frame = 0;
    this.current = 0; // the one token that Tab reaches
    element.tokenView = this;
    element.addEventListener("keydown", (event) => this.walk(event));
    element.addEventListener("focusin", (event) => this.makeCurrent(event.target));
    element.addEventListener("copy", copyWithoutMarks);
  }

  append(record) {
    this.records.push(record);
    if (!this.frame) this.frame = requestAnimationFrame(() => this.flush());
  }

  /** Show these tokens instead. */
  reset(records) {
    this.records = records.slice();
    this.spans = [];
    this.block = null;
    this.current = 0;
    this.element.replaceChildren();
    this.flush();
  }

  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const atEnd = this.scroller.followsEnd !== false;
    let fragment = document.createDocumentFragment();
    for (let index = this.spans.length; index < this.records.length; index++) {
      const record = this.records[index];
      fragment.append(this.newSpan(record, index));
      if (!this.block) this.element.append((this.block = make("div")));
      this.block.count = (this.block.count ?? 0) + 1;
      if (this.block.count >= BLOCK_TOKENS && record.text.endsWith("\n")) {
        this.block.append(fragment);
        fragment = document.createDocumentFragment();
        this.block = null;
      }
    }
    if (fragment.hasChildNodes()) this.block.append(fragment);
    if (atEnd) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.onFrame();
  }

  newSpan(record, index) {
    const span = document.createElement("span");
    span.className = classOf(record);
    span.textContent = record.text;
    span.tokenIndex = index;
    if (index === this.current) span.tabIndex = 0;
    this.spans.push(span);
    return span;
  }

  /** What the model said, without special tokens. */
  text(end = this.records.length) {
    return this.records
      .slice(0, end)
      .filter((record) => !record.special)
      .map((record) => record.text)
      .join("");
  }

  makeCurrent(span) {
    if (span.tokenIndex === undefined || span.tokenIndex === this.current) return;
    this.spans[this.current]?.removeAttribute("tabindex");
    this.current = span.tokenIndex;
    span.tabIndex = 0;
  }

  walk(event) {
    const last = this.spans.length - 1;
    const places = { ArrowRight: this.current + 1, ArrowLeft: this.current - 1, Home: 0, End: last };
    const place = places[event.key];
    if (place === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.focus(Math.max(0, Math.min(last, place)));
  }

  focus(index) {
    const span = this.spans[index];
    if (!span) return;
    this.makeCurrent(span);
    span.tabIndex = 0;
    span.focus();
  }
}

function classOf(record) {
  const { text, special, logprob } = record;
  const names = ["token"];
  if (special) names.push("special");
  else if (text === "") names.push("empty");
  else if (text.includes("\n")) names.push("line-end");
  if (record.picked) names.push("picked");
  if (logprob !== null && logprob < Math.log(0.6)) {
    names.push(logprob < Math.log(0.05) ? "p0" : logprob < Math.log(0.25) ? "p1" : "p2");
  }
  return names.join(" ");
}

/** Keep a scrolling box at its end until the reader scrolls up, and again once they are back. */
function followEnd(scroller) {
  scroller.addEventListener("scroll", () => {
    scroller.followsEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 24;
  });
}

/** Blocks are not paragraphs, and marks are not text: copy what the model wrote. */
function copyWithoutMarks(event) {
  const selection = getSelection();
  if (!selection.rangeCount || !event.clipboardData) return;
  const part = selection.getRangeAt(0).cloneContents();
  for (const mark of part.querySelectorAll(".special")) mark.remove();
  event.clipboardData.setData("text/plain", part.textContent);
  event.preventDefault();
}
