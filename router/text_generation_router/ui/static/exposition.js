"use strict";
// Prometheus' text form, and what two readings of it say about the time between. Knows no metric by name.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Samples by name, of the metrics that `wanted(name)` picks: Map of name to [{labels, value}]. */
function parseExposition(text, wanted) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const match = SAMPLE.exec(line);
    if (!match || !wanted(match[1])) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return samples;
}

function matching(samples, name, labels) {
  const wanted = Object.entries(labels);
  return (samples.get(name) ?? []).filter((sample) => wanted.every(([label, value]) => sample.labels[label] === value));
}

/** Sum over all series of a name that carry these labels; undefined if there is none. */
function total(samples, name, labels = {}) {
  const found = matching(samples, name, labels);
  return found.length ? found.reduce((sum, sample) => sum + sample.value, 0) : undefined;
}

/** How much a counter grew; a series that was not there before began at 0. Undefined if it is not there now. */
function growth(now, before, name, labels = {}) {
  const value = total(now, name, labels);
  return value === undefined ? undefined : value - (total(before, name, labels) ?? 0);
}

/** Quantiles of what a histogram saw between two readings; null if it saw nothing. */
function quantilesBetween(now, before, name, quantiles, labels = {}) {
  const buckets = new Map();
  for (const [samples, sign] of [[now, 1], [before, -1]]) {
    for (const { labels: own, value } of matching(samples, `${name}_bucket`, labels)) {
      const bound = own.le === "+Inf" ? Infinity : Number(own.le);
      buckets.set(bound, (buckets.get(bound) ?? 0) + sign * value);
    }
  }
  const rising = [...buckets].sort(([one], [other]) => one - other);
  const count = rising.at(-1)?.[1] ?? 0;
  return count > 0 ? quantiles.map((quantile) => quantileOf(rising, quantile * count)) : null;
}

/** Where `rank` lies in cumulative buckets, evenly spread within one; in the last, its lower bound. */
function quantileOf(rising, rank) {
  const index = rising.findIndex(([, count]) => count >= rank);
  const [bound, count] = rising[index];
  const [lower, countBelow] = index > 0 ? rising[index - 1] : [0, 0];
  if (bound === Infinity) return lower;
  return count === countBelow ? bound : lower + ((bound - lower) * (rank - countBelow)) / (count - countBelow);
}
