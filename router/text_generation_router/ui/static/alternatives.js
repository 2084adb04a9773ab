"use strict";
// The box beside a token that shows what else the model could have said. One for the whole page.

const LEAVE_MS = 160; // time to move the pointer from the token into the box

class Alternatives {
  /** `onPick(view, index, alternative)`: the reader wants this token instead. */
  constructor(box, onPick) {
    this.box = box;
    this.onPick = onPick;
    this.span = null;
    this.pinned = false; // stays when the pointer leaves
    this.leaving = 0;
    box.addEventListener("pointerenter", () => clearTimeout(this.leaving));
    box.addEventListener("pointerleave", () => this.leave());
    box.addEventListener("keydown", (event) => this.walk(event));
    box.addEventListener("focusout", (event) => this.focusLeft(event));
    addEventListener("resize", () => this.hide());
    document.addEventListener("pointerdown", (event) => {
      if (!this.box.contains(event.target) && event.target.tokenIndex === undefined) this.hide();
    });
  }

  /** Listen to the tokens of an element that has a TokenView. */
  watch(element, scroller) {
    element.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse" && event.target.tokenIndex !== undefined && !this.pinned) {
        clearTimeout(this.leaving);
        this.show(event.target);
      }
    });
    element.addEventListener("pointerout", () => this.leave());
    element.addEventListener("click", (event) => {
      const { tokenIndex } = event.target;
      if (tokenIndex !== undefined && getSelection().isCollapsed) element.tokenView.focus(tokenIndex);
    });
    element.addEventListener("focusin", (event) => {
      if (event.target.tokenIndex === undefined) return;
      this.show(event.target);
      this.pinned = true;
    });
    element.addEventListener("focusout", (event) => this.focusLeft(event));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.ctrlKey || event.metaKey || event.target !== this.span) return;
      event.preventDefault();
      this.box.querySelector("button:enabled")?.focus();
    });
    scroller.addEventListener("scroll", () => (this.pinned ? this.place() : this.hide()));
  }

  get isOpen() {
    return !this.box.hidden;
  }

  leave() {
    clearTimeout(this.leaving);
    if (!this.pinned) this.leaving = setTimeout(() => this.hide(), LEAVE_MS);
  }

  focusLeft(event) {
    const to = event.relatedTarget;
    if (to && (this.box.contains(to) || to.tokenIndex !== undefined)) return;
    if (to) this.hide();
  }

  hide() {
    clearTimeout(this.leaving);
    this.pinned = false;
    this.span?.classList.remove("shown");
    this.span?.removeAttribute("aria-describedby");
    this.span = null;
    this.box.hidden = true;
  }

  /** Close, and give the focus back to the token if the box had it. */
  close() {
    const span = this.span;
    const hadFocus = this.box.contains(document.activeElement);
    if (hadFocus) span?.focus();
    this.hide();
  }

  show(span) {
    if (this.span === span) return;
    this.hide();
    this.span = span;
    span.classList.add("shown");
    span.setAttribute("aria-describedby", this.box.id);
    const view = span.closest(".text").tokenView;
    const index = span.tokenIndex;
    const record = view.records[index];
    const head = make("p", "head", make("b", "", visibleText(nameOf(record))));
    head.append(make("span", "muted", facts(record)));
    const rows = (record.top ?? []).map((alternative) => this.row(view, index, record, alternative));
    if (!rows.some((row) => row.classList.contains("chosen")) && rows.length) {
      rows.push(this.row(view, index, record, record)); // drawn from further down the list
    }
    const list = rows.length ? rows : [make("p", "muted", "No alternatives were asked for.")];
    this.box.replaceChildren(head, ...list);
    if (rows.length) this.box.append(make("p", "muted hint", "Choose one to go on from it instead."));
    this.box.hidden = false;
    this.place();
  }

  row(view, index, record, alternative) {
    const isChosen = sameToken(alternative, record);
    const bar = make("i", "amount");
    bar.style.width = `${Math.exp(alternative.logprob ?? -Infinity) * 100}%`;
    const row = make(
      "button",
      isChosen ? "alternative chosen" : "alternative",
      bar,
      make("span", alternative.special ? "what special-text" : "what", visibleText(nameOf(alternative))),
      make("span", "percent", percentOf(alternative.logprob)),
    );
    row.type = "button";
    row.title = facts(alternative);
    row.disabled = isChosen || alternative.special || alternative.text === "" || alternative.text.includes("\ufffd");
    if (isChosen) row.setAttribute("aria-current", "true");
    row.addEventListener("click", () => {
      this.hide();
      this.onPick(view, index, alternative);
    });
    return row;
  }

  walk(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const rows = [...this.box.querySelectorAll("button:enabled")];
    const place = rows.indexOf(document.activeElement) + step;
    rows[Math.max(0, Math.min(rows.length - 1, place))]?.focus();
  }

  /** Below the token, or above where there is no room; on narrow pages the stylesheet docks it to the bottom. */
  place() {
    if (!this.span) return;
    const rects = this.span.getClientRects();
    const token = rects[rects.length - 1] ?? this.span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const left = Math.max(8, Math.min(token.left, innerWidth - width - 8));
    const below = token.bottom + 6;
    const top = below + height <= innerHeight - 8 ? below : Math.max(8, token.top - height - 6);
    this.box.style.left = `${left}px`;
    this.box.style.top = `${top}px`;
  }
}

/** A token's own text, where the answer shows it otherwise (see readChatEvent). */
function nameOf(token) {
  return token.name ?? token.text;
}

function sameToken(one, other) {
  if (one.id !== undefined && other.id !== undefined) return one.id === other.id;
  return nameOf(one) === nameOf(other) && one.logprob === other.logprob;
}

function facts({ id, logprob }) {
  const parts = [];
  if (id !== undefined) parts.push(`id ${id}`);
  if (logprob !== null && logprob !== undefined) parts.push(`logprob ${logprob.toFixed(4)}`);
  return parts.join(" · ");
}
