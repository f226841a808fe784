/**
 * What a run's events come to on the page: a fold. It knows no clock, no DOM and no network; what it gives is the same
 * for the same events, live or read again.
 *
 * A `Run` has chains, the root's under its own id. A chain is a list of parts in the order they came:
 * `reasoning`, `text`, `replaced` (text of an attempt that was made again), `tools` (the calls of one round),
 * `approval`, `question`, `note`, `summary` and `gap`. Times are milliseconds since 1970, of the events.
 */

/** States of a call, as the page tells them. */
const OF_STATUS = { rejected: 'cancelled', amended: 'cancelled', cancelled: 'cancelled', unknown_outcome: 'unknown' };
const NOTED = new Set(['degraded', 'unsupported_success']);

/** A run of which nothing is known yet. @param {string} [input] What the user said. */
export function newRun(input = '') {
  return {
    id: null,
    sessionId: null,
    agent: null,
    input,
    accepted: false,
    seq: 0,
    state: 'idle',
    startedAt: null,
    at: null,
    asks: null, // the model that is asked, "provider/model"
    writing: false,
    tokens: { input: 0, output: 0, estimated: false },
    guessed: 0, // tokens of replies that are not whole yet
    chains: Object.create(null),
    calls: Object.create(null),
    pending: [], // approvals and questions that wait, in order
    end: null,
  };
}

/** Take the next event. What was taken already changes nothing. @param {object} run @param {object} event */
export function fold(run, event) {
  if (event.type === 'gap') {
    chainOf(run, event).parts.push({ kind: 'gap', key: `gap${event.after_seq}`, missed: event.missed });
    run.seq = event.next_seq - 1;
    return;
  }
  if (event.seq <= run.seq) return;
  run.seq = event.seq;
  run.id = event.run_id;
  run.sessionId = event.session_id;
  run.at = Date.parse(event.ts);
  FOLDS[event.type]?.(run, event, chainOf(run, event));
}

/** The root's chain, if anything is known of it. */
export const rootOf = (run) => run.chains[run.id];

/** How many calls of the root's newest round there are, and how many of them have ended. */
export function progressOf(run) {
  const group = rootOf(run)?.parts.findLast((part) => part.kind === 'tools');
  const calls = group?.calls ?? [];
  return { done: calls.filter((call) => call.endedAt !== null).length, all: calls.length };
}

/** The calls of the root, of whatever round. */
export const callsOf = (run) => (rootOf(run)?.parts ?? []).flatMap((part) => (part.kind === 'tools' ? part.calls : []));

/** The answer as Markdown: what the root has said in all its rounds. */
export const textOf = (run) =>
  (rootOf(run)?.parts ?? [])
    .filter((part) => part.kind === 'text')
    .map((part) => part.text.trim())
    .join('\n\n');

/** What of this kind waits for a person. @param {object} run @param {'approval' | 'question'} kind */
export const waiting = (run, kind) => run.pending.filter((part) => part.kind === kind);

/** The tokens so far, with a guess for replies that are not whole. */
export function tokensOf(run) {
  const { input, output, estimated } = run.tokens;
  return { input, output: output + run.guessed, estimated, guessed: run.guessed > 0 };
}

function chainOf(run, event) {
  return (run.chains[event.chain_id] ??= {
    id: event.chain_id,
    parts: [],
    provider: null,
    guessed: 0,
    writes: false,
  });
}

const isRoot = (event) => event.chain_id === event.run_id;

const FOLDS = {
  input(run, event) {
    if (!isRoot(event)) return;
    Object.assign(run, { input: event.text, accepted: true, agent: event.path[0], startedAt: run.at });
  },

  state(run, event) {
    if (isRoot(event)) run.state = event.current;
  },

  model_start(run, event, chain) {
    chain.provider = event.provider;
    if (!isRoot(event)) return;
    run.asks = event.model.includes('/') ? event.model : `${event.provider}/${event.model}`;
    run.writing = false;
  },

  delta(run, event, chain) {
    const kind = event.channel === 'answer' ? 'text' : 'reasoning';
    const round = `${event.iteration}.${event.attempt}`;
    let part = chain.parts.findLast((one) => one.kind === kind && one.round === round);
    if (part === undefined) {
      part = { kind, round, key: `${kind}${round}`, text: '', from: run.at, to: run.at, live: true };
      chain.parts.push(part);
    }
    part.text += event.text;
    part.to = run.at;
    if (kind === 'text') endReasoning(chain);
    chain.writes = kind === 'text';
    chain.guessed += event.count;
    run.guessed += event.count;
    if (isRoot(event)) run.writing = kind === 'text';
  },

  rollback(run, event, chain) {
    const round = `${event.iteration}.${event.attempt}`;
    const at = chain.parts.findIndex((part) => part.round === round);
    const gone = chain.parts.filter((part) => part.round === round);
    chain.parts = chain.parts.filter((part) => part.round !== round);
    const text = gone
      .filter((part) => part.kind === 'text')
      .map((part) => part.text)
      .join('');
    if (text) {
      const { attempt, reason } = event;
      const key = `replaced${event.seq}`;
      chain.parts.splice(at, 0, { kind: 'replaced', key, text, attempt, reason, provider: chain.provider });
    }
    settle(run, chain);
    if (isRoot(event)) run.writing = false;
  },

  model_complete(run, event, chain) {
    settle(run, chain);
    addUsage(run, event.usage);
    if (isRoot(event)) run.writing = false;
    if (event.tool_calls.length === 0) return;
    const calls = event.tool_calls.map((call) => newCall(run, chain, call.call_id, call.name, call.raw_arguments));
    chain.parts.push({ kind: 'tools', key: `tools${event.seq}`, calls });
  },

  tool_start(run, event, chain) {
    const call = callOf(run, event, chain);
    Object.assign(call, { state: 'running', attempt: event.attempt, startedAt: run.at, endedAt: null, pausedAt: null });
    Object.assign(call, { arguments: event.arguments, raw: event.raw_arguments, child: event.child_chain_id });
    Object.assign(call, { lines: '', item: null, progress: null });
  },

  tool_delta(run, event, chain) {
    const call = callOf(run, event, chain);
    const { data } = event;
    if (typeof data === 'string') {
      call.lines = (call.lines + data).slice(-8000);
    } else if (Number.isFinite(data?.done) && Number.isFinite(data?.total)) {
      call.progress = { done: data.done, total: data.total, message: data.message };
    } else {
      call.item = JSON.stringify(data);
    }
  },

  tool_complete(run, event, chain) {
    const call = callOf(run, event, chain);
    close(run, call, 'done', event);
    Object.assign(call, { status: null, truncated: event.truncated, reusedFrom: event.reused_from });
  },

  tool_error(run, event, chain) {
    const call = callOf(run, event, chain);
    call.status = event.status;
    call.error = event.error;
    if (event.will_retry) {
      call.failed = event.error.message;
      call.pausedAt = run.at;
      return;
    }
    close(run, call, OF_STATUS[event.status] ?? 'failed', event);
  },

  approval(run, event, chain) {
    const call = callOf(run, event, chain);
    call.state = 'waiting';
    call.arguments = event.arguments;
    const { arguments_hash: hash, reason, tool } = event;
    const expires = event.expires_at === null ? null : Date.parse(event.expires_at);
    const asked = { arguments: event.arguments, hash, reason, tool, expires, callId: event.call_id };
    ask(run, chain, { kind: 'approval', key: `approval${event.seq}`, target: event.call_id, ...asked });
  },

  question(run, event, chain) {
    const call = run.calls[event.question_id];
    if (call) call.state = 'waiting';
    const asked = { text: event.text, options: event.options };
    ask(run, chain, { kind: 'question', key: `question${event.seq}`, target: event.question_id, ...asked });
  },

  resolved(run, event) {
    const resolved = { decision: event.decision, by: event.by, text: event.text };
    const part = run.pending.find((one) => one.target === event.target);
    if (part) part.resolved = resolved;
    run.pending = run.pending.filter((one) => one !== part);
    const call = run.calls[event.target];
    if (!call) return;
    if (part?.kind !== 'question') call.resolved = resolved;
    if (call.state === 'waiting') call.state = call.startedAt === null ? 'queued' : 'running';
  },

  summary(run, event, chain) {
    const [first, last] = event.turns;
    chain.parts.push({ kind: 'summary', key: `summary${event.seq}`, first, last, text: event.text });
  },

  warning(run, event, chain) {
    if (!NOTED.has(event.code)) return;
    chain.parts.push({ kind: 'note', key: `note${event.seq}`, code: event.code, text: event.message });
  },

  final(run, event, chain) {
    if (!isRoot(event)) return;
    end(run, event);
    const part = chain.parts.findLast((one) => one.kind === 'text');
    if (part && part.round.startsWith(`${event.iteration}.`)) {
      part.text = event.text; // it may have been changed on its way out
    } else if (event.text) {
      chain.parts.push({ kind: 'text', round: `${event.iteration}.0`, key: 'final', text: event.text, live: false });
    }
  },

  failed: (run, event) => isRoot(event) && end(run, event),
  cancelled: (run, event) => isRoot(event) && end(run, event),
};

function end(run, event) {
  const { type, usage, duration_ms: duration, finish_reason: finish, iterations, error, reason } = event;
  run.end = { type, duration, finish, iterations, error, reason };
  run.tokens = { input: usage.input_tokens, output: usage.output_tokens, estimated: usage.estimated };
  run.writing = false;
  run.pending = [];
  for (const chain of Object.values(run.chains)) settle(run, chain);
  for (const call of Object.values(run.calls)) {
    if (call.endedAt === null) Object.assign(call, { state: 'cancelled', endedAt: run.at });
  }
}

/** The reply of this chain is whole, or void. */
function settle(run, chain) {
  endReasoning(chain);
  for (const part of chain.parts) {
    if (part.kind === 'text') part.live = false;
  }
  run.guessed -= chain.guessed;
  chain.guessed = 0;
  chain.writes = false;
}

function endReasoning(chain) {
  for (const part of chain.parts) {
    if (part.kind === 'reasoning') part.live = false;
  }
}

function addUsage(run, usage) {
  run.tokens.input += usage.input_tokens;
  run.tokens.output += usage.output_tokens;
  run.tokens.estimated ||= usage.estimated;
}

function ask(run, chain, part) {
  part.resolved = null;
  part.runId = run.id;
  chain.parts.push(part);
  run.pending.push(part);
}

function newCall(run, chain, id, tool, raw) {
  return (run.calls[id] = {
    id,
    tool,
    raw,
    arguments: null,
    state: 'queued',
    status: null,
    attempt: 1,
    startedAt: null,
    pausedAt: null, // when its last attempt failed, if another follows
    endedAt: null,
    duration: null,
    lines: '',
    item: null,
    progress: null,
    failed: null, // what its last attempt failed of
    error: null,
    result: null,
    truncated: false,
    reusedFrom: null,
    resolved: null,
    child: null,
  });
}

/** The call that an event is about; one that no reply has asked for stands in a group of its own. */
function callOf(run, event, chain) {
  const known = run.calls[event.call_id];
  if (known) return known;
  const call = newCall(run, chain, event.call_id, event.tool, event.raw_arguments ?? '');
  chain.parts.push({ kind: 'tools', key: `tools${event.seq}`, calls: [call] });
  return call;
}

function close(run, call, state, event) {
  Object.assign(call, { state, endedAt: run.at, pausedAt: null, duration: event.duration_ms, result: event.result });
}
