/**
 * A run's events as rows of bars: its chains, the rounds of the first, model calls and tool calls. Pure.
 *
 * A row is `{key, kind, depth, label, attempts, status, note, bars, seqs}`; a bar `{kind, from, to, cuts}` in ms since
 * 1970, `to` null while it is open. Kinds of bars: until, model, tool, failed, backoff, replaced, waiting, and for
 * chains the states.
 */

const ENDS = new Set(['final', 'failed', 'cancelled']);
const isText = (type) => type === 'delta' || type === 'tool_delta';

/** An empty one. */
export function newWaterfall() {
  return {
    chains: new Map(),
    root: null, // the chain that is the run
    steps: new Map(), // rows of model calls, tool calls and questions, by their keys
    events: [], // all but deltas
    rowOf: new Map(), // the key of an event's row, by its number
    count: 0,
    begin: null, // ms; and of the newest event
    last: null,
    end: null, // the event that ended it
    input: '',
    session: null,
    facts: { replaced: 0, models: 0, tools: 0, failed: 0, input: 0, output: 0, first: null, rounds: 0 },
  };
}

/** Take an event, in order. @param {ReturnType<newWaterfall>} run @param {object} event */
export function take(run, event) {
  if (event.type === 'gap') return;
  const ms = Date.parse(event.ts);
  run.begin ??= ms;
  run.last = ms;
  run.count = event.seq;
  const chain = chainOf(run, event);
  const row = TAKES[event.type]?.(run, chain, event, ms) ?? null;
  if (isText(event.type)) return;
  run.events.push(event);
  run.rowOf.set(event.seq, row?.key ?? chain.key);
  (row ?? chain).seqs.push(event.seq);
  if (ENDS.has(event.type) && event.chain_id === event.run_id) finish(run, event, ms);
}

function newRow(key, kind, depth, label) {
  return { key, kind, depth, label, attempts: 0, status: null, note: null, first: null, bars: [], seqs: [] };
}

function chainOf(run, event) {
  let chain = run.chains.get(event.chain_id);
  if (chain === undefined) {
    const depth = event.path.length - 1;
    chain = { ...newRow(event.chain_id, 'chain', depth, event.path.at(-1)), rounds: new Map() };
    run.chains.set(event.chain_id, chain);
    if (event.chain_id === event.run_id) run.root = chain;
  }
  return chain;
}

function stepOf(run, chain, event, key, kind, label) {
  const id = `${event.chain_id} ${key}`;
  if (!run.steps.has(id)) {
    const row = newRow(id, kind, chain.depth + 1, label);
    run.steps.set(id, row);
    if (!chain.rounds.has(event.iteration)) chain.rounds.set(event.iteration, []);
    chain.rounds.get(event.iteration).push(row);
  }
  return run.steps.get(id);
}

const begin = (row, kind, from) => row.bars.push({ kind, from, to: null, cuts: [] });

/** Close what is open in a row, and give it another kind if it was not what it seemed. */
function close(row, to, kind) {
  for (const bar of row.bars) {
    if (bar.to !== null) continue;
    bar.to = to;
    if (kind && bar.kind !== 'waiting' && bar.kind !== 'backoff') bar.kind = kind;
  }
}

const callOf = (run, chain, event) => stepOf(run, chain, event, event.call_id, 'tool', event.tool);
const modelOf = (run, chain, event) => stepOf(run, chain, event, `model ${event.iteration}`, 'model', '');

/** What each kind of event does; it gives the event's row, if it is not that of its chain. */
const TAKES = {
  input(run, chain, event) {
    if (chain !== run.root) return;
    run.input = event.text;
    run.session = event.session_id;
  },
  state(run, chain, event, ms) {
    close(chain, ms);
    chain.status = event.current;
    if (!['completed', 'failed', 'cancelled'].includes(event.current)) begin(chain, event.current, ms);
  },
  model_start(run, chain, event, ms) {
    const row = modelOf(run, chain, event);
    row.label = event.model.includes('/') ? event.model : `${event.provider}/${event.model}`;
    row.attempts += 1;
    row.status = 'running';
    close(row, ms);
    begin(row, 'until', ms);
    run.facts.models += 1;
    if (chain === run.root) run.facts.rounds = Math.max(run.facts.rounds, event.iteration);
    return row;
  },
  delta(run, chain, event, ms) {
    const row = modelOf(run, chain, event);
    if (row.bars.at(-1)?.kind !== 'until' || row.bars.at(-1).to !== null) return row;
    row.first = ms - row.bars.at(-1).from;
    if (chain === run.root && event.channel === 'answer') run.facts.first ??= ms - run.begin;
    close(row, ms);
    begin(row, 'model', ms);
    return row;
  },
  rollback(run, chain, event, ms) {
    const row = modelOf(run, chain, event);
    const attempt = row.bars.findLastIndex((bar) => bar.kind === 'until');
    const [first] = row.bars.splice(Math.max(attempt, 0));
    if (first) row.bars.push({ ...first, kind: 'replaced', to: ms });
    begin(row, 'backoff', ms);
    run.facts.replaced += 1;
    return row;
  },
  model_complete(run, chain, event, ms) {
    const row = modelOf(run, chain, event);
    close(row, ms);
    row.status = 'done';
    run.facts.input += event.usage.input_tokens;
    run.facts.output += event.usage.output_tokens;
    for (const call of event.tool_calls ?? []) stepOf(run, chain, event, call.call_id, 'tool', call.name).status = 'queued';
    return row;
  },
  approval(run, chain, event, ms) {
    const row = callOf(run, chain, event);
    row.status = 'waiting';
    begin(row, 'waiting', ms);
    row.wait = 'approval';
    return row;
  },
  question(run, chain, event, ms) {
    const row = stepOf(run, chain, event, event.question_id, 'question', event.text.slice(0, 80));
    row.status = 'waiting';
    close(row, ms);
    begin(row, 'waiting', ms);
    row.wait = 'question';
    return row;
  },
  resolved(run, chain, event, ms) {
    const row = run.steps.get(`${event.chain_id} ${event.target}`);
    if (row === undefined) return null;
    close(row, ms);
    row.status = row.kind === 'question' ? 'done' : 'queued';
    row.note = { decision: event.decision, by: event.by ?? null };
    return row;
  },
  tool_start(run, chain, event, ms) {
    const row = callOf(run, chain, event);
    row.attempts += 1;
    row.status = 'running';
    row.child = event.child_chain_id ?? row.child ?? null;
    close(row, ms);
    begin(row, 'tool', ms);
    return row;
  },
  tool_delta(run, chain, event, ms) {
    const row = callOf(run, chain, event);
    row.bars.at(-1)?.cuts.push(ms);
    return row;
  },
  tool_complete(run, chain, event, ms) {
    const row = callOf(run, chain, event);
    close(row, ms);
    row.status = 'done';
    run.facts.tools += 1;
    return row;
  },
  tool_error(run, chain, event, ms) {
    const row = callOf(run, chain, event);
    close(row, ms, 'failed');
    row.status = event.will_retry ? 'running' : event.status;
    if (event.will_retry) begin(row, 'backoff', ms);
    else {
      run.facts.tools += 1;
      run.facts.failed += 1;
    }
    return row;
  },
};

function finish(run, event, ms) {
  run.end = event;
  for (const row of [...run.steps.values(), ...run.chains.values()]) {
    if (row.bars.some((bar) => bar.to === null) && row.kind !== 'chain') row.status = 'cancelled';
    close(row, ms, event.type === 'failed' && row.kind === 'model' ? 'failed' : undefined);
  }
}

/** All rows as they stand below each other; those below a chain that is folded are left out. @param {Set<string>} folded */
export function rowsOf(run, folded) {
  return run.root === null ? [] : chainRows(run, run.root, folded);
}

function chainRows(run, chain, folded) {
  const rows = [{ ...chain, isFolded: folded.has(chain.key), canFold: chain.rounds.size > 0 }];
  if (folded.has(chain.key)) return rows;
  for (const [number, steps] of [...chain.rounds].sort(([one], [other]) => one - other)) {
    if (chain === run.root) rows.push({ key: `round ${number}`, kind: 'round', depth: 1, number, bars: [], seqs: [] });
    for (const step of steps) {
      const child = step.child ? run.chains.get(step.child) : undefined;
      if (child === undefined) rows.push(step);
      else {
        const [own, ...below] = chainRows(run, child, folded);
        rows.push({ ...own, status: step.status, call: step, depth: step.depth, isChild: true }, ...below);
      }
    }
  }
  return rows;
}

/** The spans in which the run as a whole waited for people. @returns {[number, number][]} */
export function waits(run, now) {
  const bars = run.root?.bars.filter((bar) => bar.kind === 'suspended') ?? [];
  return bars.map((bar) => [bar.from, bar.to ?? now]);
}

const STUB = 0.06; // of the axis, for each span that is cut out

/** Where a time stands between 0 and 1, with spans of waiting cut short. */
export class Axis {
  #pieces = []; // from, to, and where they stand
  /** @param {number} from @param {number} to @param {[number, number][]} cuts All in ms. */
  constructor(from, to, cuts) {
    this.from = from;
    this.cut = cuts.reduce((sum, [begin, end]) => sum + end - begin, 0);
    this.working = Math.max(to - from - this.cut, 1);
    const stub = Math.min(STUB, 0.5 / Math.max(cuts.length, 1));
    const scale = (1 - stub * cuts.length) / this.working;
    let at = 0;
    let since = from;
    const piece = (end, width, isCut) => {
      this.#pieces.push({ from: since, to: end, at, width, isCut });
      at += width;
      since = end;
    };
    for (const [begin, end] of cuts) {
      piece(begin, (begin - since) * scale, false);
      piece(end, stub, true);
    }
    piece(Math.max(to, since), Math.max(to - since, 0) * scale, false);
  }

  /** @param {number} ms */
  at(ms) {
    const piece = this.#pieces.find(({ to }) => ms <= to) ?? this.#pieces.at(-1);
    const share = (ms - piece.from) / Math.max(piece.to - piece.from, 1);
    return Math.min(Math.max(piece.at + share * piece.width, 0), 1);
  }

  /** Marks every so many ms of working time, where they stand and what time has elapsed. @param {number} step ms */
  ticks(step) {
    const ticks = [];
    let worked = 0;
    for (const piece of this.#pieces) {
      if (piece.isCut) continue;
      const length = piece.to - piece.from;
      for (let mark = Math.ceil(worked / step) * step; mark < worked + length; mark += step) {
        const ms = piece.from + mark - worked;
        ticks.push({ at: this.at(ms), elapsed: ms - this.from });
      }
      worked += length;
    }
    return ticks;
  }

  /** Where the spans that are cut out stand. @returns {[number, number][]} */
  stubs() {
    return this.#pieces.filter((piece) => piece.isCut).map(({ at, width }) => [at, at + width]);
  }
}
