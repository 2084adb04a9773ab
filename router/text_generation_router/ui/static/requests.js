"use strict";
// The two routes that the playground uses: the bodies it sends, and what their events mean. Knows no elements.
//
// `settings` is {do_sample, temperature, top_p, top_k, seed, repetition_penalty, max_new_tokens, top_n_tokens, stop}, with
// null for what was left empty. Values are not checked here: the server's own words about a wrong one are shown.

const SAMPLING_ONLY = ["temperature", "top_p", "top_k", "seed"];

function promptRequest(text, settings) {
  const parameters = { details: true, do_sample: settings.do_sample };
  for (const [name, value] of Object.entries(given(settings))) parameters[name] = value;
  return { path: "/generate_stream", body: { inputs: text, parameters } };
}

function chatRequest(messages, settings, model) {
  const { do_sample: doSample, max_new_tokens: maxTokens, top_n_tokens: topN, ...others } = given(settings);
  const body = { model, messages, stream: true, stream_options: { include_usage: true }, logprobs: true, ...others };
  if (!settings.do_sample) body.temperature = 0;
  if (maxTokens !== undefined) body.max_tokens = maxTokens;
  if (topN !== undefined) body.top_logprobs = topN;
  return { path: "/v1/chat/completions", body };
}

/** Only what has a value, and has an effect. */
function given(settings) {
  const entries = Object.entries(settings).filter(
    ([name, value]) =>
      value !== null && name !== "do_sample" && (settings.do_sample || !SAMPLING_ONLY.includes(name)),
  );
  const kept = Object.fromEntries(entries);
  if (kept.stop?.length === 0) delete kept.stop;
  if (kept.top_n_tokens === 0) delete kept.top_n_tokens;
  return kept;
}

/** What one event of /generate_stream brings: {records, ending}. */
function readPromptEvent(event) {
  const records = [{ ...event.token, top: event.top_tokens ?? [] }];
  const { details } = event;
  const ending =
    event.generated_text === null
      ? null
      : { reason: details?.finish_reason ?? "", promptTokens: details?.input_length, seed: details?.seed };
  return { records, ending };
}

/** The same of a chunk of /v1/chat/completions, whose text may come later than its tokens. */
function readChatEvent(event) {
  const choice = event.choices?.[0];
  if (!choice) return { records: [], ending: event.usage ? { promptTokens: event.usage.prompt_tokens } : null };
  const content = choice.delta?.content ?? "";
  const entries = choice.logprobs?.content ?? [];
  const isWhole = entries.map((entry) => entry.token).join("") === content;
  const records = entries.map((entry, index) => {
    const isLast = index === entries.length - 1;
    // A token without text ends the answer, or is the first part of a character.
    const special = content === "" && isLast && choice.finish_reason === "stop" && entry.token !== "";
    const text = special || isWhole ? entry.token : isLast ? content : "";
    return {
      text,
      name: entry.token,
      logprob: entry.logprob,
      special,
      top: entry.top_logprobs.map((other) => ({ text: other.token, logprob: other.logprob })),
    };
  });
  if (!records.length && content) records.push({ text: content, logprob: null, special: false, top: [] });
  return { records, ending: choice.finish_reason ? { reason: choice.finish_reason } : null };
}

function curlCommand({ path, body }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  return [
    `curl -N ${quoted(location.origin + BASE + path)}`,
    "-H 'content-type: application/json'",
    `-d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n  ");
}
