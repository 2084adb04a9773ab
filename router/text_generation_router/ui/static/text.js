"use strict";
// How values are shown. Knows neither the page nor the server.

const INVISIBLE = /[\p{Cc}\p{Cf}\u2028\u2029]/gu;

/** A token's text with everything invisible made visible, for places where it stands alone. */
function visibleText(text) {
  if (text === "") return "(part of a character)";
  return text
    .replaceAll("\n", "⏎")
    .replaceAll("\t", "⇥")
    .replaceAll(" ", "␣")
    // A joiner inside an emoji, or a mark of direction between letters, belongs to what is seen.
    .replace(INVISIBLE, (mark) => (text.length > mark.length ? mark : "U+" + codePoint(mark)));
}

function codePoint(character) {
  return character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

/** "34.2 %" of a natural logarithm; null is a probability of which the server says nothing. */
function percentOf(logprob) {
  if (logprob === null || logprob === undefined) return "–";
  const percent = Math.exp(logprob) * 100;
  if (percent >= 99.995) return "100 %";
  if (percent < 0.01) return "< 0.01 %";
  return percent.toFixed(2) + " %";
}

function seconds(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 0.00995) return (value * 1000).toFixed(1) + " ms";
  if (value < 0.9995) return Math.round(value * 1000) + " ms";
  return (value < 9.95 ? value.toFixed(1) : Math.round(value)) + " s";
}

function quantity(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (value >= 1e4) return (value / 1e3).toFixed(1) + " k";
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

/** Of a share of one. */
function percent(share) {
  if (!Number.isFinite(share)) return "–";
  return `${(share * 100).toFixed(share > 0 && share < 0.0995 ? 1 : 0)} %`;
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

/** An element with a class and children; text only ever becomes text nodes. */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function find(id) {
  return document.getElementById(id);
}
