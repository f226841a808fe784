/** A turn of a session's history as a run, where its events are no longer kept: what was said, without when. */

import { newRun } from './state.js';

const FAILED = /^\[(?:error: )?(\w+)/; // how the result of a call begins that did not succeed
const STATES = { cancelled: 'cancelled', rejected: 'cancelled', amended: 'cancelled', unknown_outcome: 'unknown' };

/** @param {{run_id: string, outcome: string, messages: object[]}} turn */
export function runOfTurn(turn) {
  const [said, ...rest] = turn.messages;
  const run = Object.assign(newRun(said?.content ?? ''), { id: turn.run_id, accepted: true });
  const chain = (run.chains[run.id] = { id: run.id, parts: [], provider: null, guessed: 0, writes: false });
  rest.forEach((message, at) => FOLDS[message.role]?.(run, chain, message, at));
  run.end = { type: turn.outcome, stored: true };
  return run;
}

const FOLDS = {
  assistant(run, chain, message, at) {
    const part = { round: `${at}`, live: false, from: null, to: null };
    if (message.reasoning)
      chain.parts.push({ ...part, kind: 'reasoning', key: `reasoning${at}`, text: message.reasoning });
    if (message.content) chain.parts.push({ ...part, kind: 'text', key: `text${at}`, text: message.content });
    if (message.tool_calls.length === 0) return;
    const calls = message.tool_calls.map((call) => (run.calls[call.call_id] = storedCall(call)));
    chain.parts.push({ kind: 'tools', key: `tools${at}`, calls });
  },

  tool(run, chain, message) {
    const call = run.calls[message.call_id];
    if (!call) return;
    const kind = message.content.startsWith('[success]') ? null : (FAILED.exec(message.content)?.[1] ?? 'failed');
    const state = kind === null ? 'done' : (STATES[kind] ?? 'failed');
    Object.assign(call, { result: message.content, state, status: state === 'failed' ? 'error' : kind });
  },

  user(run, chain, message, at) {
    chain.parts.push({ kind: 'said', key: `said${at}`, text: message.content });
  },
};

function storedCall({ call_id: id, name: tool, raw_arguments: raw }) {
  const call = { id, tool, raw, arguments: null, state: 'cancelled', status: null, attempt: 1, result: null };
  return { ...call, startedAt: null, endedAt: 0, duration: null, lines: '', resolved: null, child: null };
}
