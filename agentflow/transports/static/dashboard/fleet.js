/**
 * The runs in flight and what has ended, as a snapshot says and events change it. Pure: it mirrors the server's own
 * fold, and keeps rows and counts, never texts.
 */

import { BIN, STATES, Series } from './series.js';

const QUIET = new Set(['delta', 'tool_delta']);
const ENDS = new Set(['final', 'failed', 'cancelled']);
const MOST = 10_000; // rows
const SHOWN_AFTER = 2000; // ms for which a run that has ended stays in the list

const reasonOf = { final: (event) => event.finish_reason, failed: (event) => event.error.kind, cancelled: (event) => event.reason };

export class Fleet {
  series = new Series();
  /** @type {Map<string, object>} Rows of runs in flight, as the server tells them. */
  runs = new Map();
  /** @type {Map<string, object>} Rows of runs that ended just now: `outcome` and `until`. */
  leaving = new Map();
  totals = {};
  unseen = 0;
  heard = 0; // events
  /** @type {number | null} How long the newest event was on its way, ms. */
  delay = null;
  /** @type {number | null} When the newest event was written, ms. */
  last = null;
  /** @type {number | null} The bin that was sampled last. */
  #bin = null;

  /**
   * Begin anew with what the server has counted. Curves keep what was seen before, where it tells nothing.
   * @param {object} snapshot
   */
  load(snapshot) {
    const now = Date.parse(snapshot.at);
    this.runs = new Map(snapshot.runs.map((row) => [row.run_id, { ...row, calls: new Map(row.calls), waiting: new Set(row.waiting) }]));
    this.totals = { ...snapshot.totals };
    this.unseen = snapshot.unseen;
    const { recent, totals } = snapshot;
    const all = { runs: totals.final + totals.failed + totals.cancelled, tools: totals.tool_calls, models: totals.model_calls };
    for (const [kind, rows] of Object.entries(recent)) this.series.reload(kind, rows, rows.length >= all[kind]);
    this.sample(now);
  }

  /** An event of the firehose, in order. @param {object} event */
  take(event) {
    this.heard += 1;
    this.last = Math.max(this.last ?? 0, Date.parse(event.ts));
    this.#fill(this.last);
    if (QUIET.has(event.type)) return;
    const row = this.#row(event);
    row.seq = event.seq;
    if (event.type !== 'state') row.last = event.type;
    TAKES[event.type]?.call(this, row, event);
    if (ENDS.has(event.type)) this.#end(row, event);
  }

  /** Whole bins in which nothing was heard, such as those of a break that was made good, were as the last one. */
  #fill(now) {
    const bin = Math.floor(now / BIN);
    if (this.#bin === null || bin <= this.#bin) return;
    const counts = this.counts();
    for (let at = this.#bin; at < bin; at += 1) this.series.sample(at * BIN, counts);
    this.#bin = bin;
  }

  #row(event) {
    let row = this.runs.get(event.run_id);
    if (row === undefined) {
      if (this.runs.size >= MOST) {
        this.runs.delete(this.runs.keys().next().value);
        this.unseen += 1;
      }
      row = {
        run_id: event.run_id, agent: event.path[0], session_id: event.session_id, user_id: null, model: '',
        state: 'thinking', began: event.ts, since: event.ts, iteration: 0, seq: 0, last: '', input_tokens: 0,
        output_tokens: 0, waited_ms: 0, first_chunk_ms: null, model_began: '', marks: [], calls: new Map(), waiting: new Set(),
      };
      this.runs.set(event.run_id, row);
      this.totals.runs += 1;
    }
    return row;
  }

  #end(row, event) {
    this.runs.delete(row.run_id);
    this.leaving.set(row.run_id, { ...row, outcome: event.type, until: Date.parse(event.ts) + SHOWN_AFTER });
    this.totals[event.type] += 1;
    this.totals.input_tokens += event.usage.input_tokens;
    this.totals.output_tokens += event.usage.output_tokens;
    this.series.take('runs', {
      ts: event.ts, outcome: event.type, reason: reasonOf[event.type](event), duration_ms: event.duration_ms,
      waited_ms: row.waited_ms, first_chunk_ms: row.first_chunk_ms,
    });
  }

  /** How many runs stand in each state, in the order of `STATES`. @returns {number[]} */
  counts() {
    const counts = STATES.map(() => 0);
    for (const row of this.runs.values()) counts[Math.max(STATES.indexOf(stateOf(row)), 0)] += 1;
    return counts;
  }

  /** Note how many are in flight now, and let those go that have ended. @param {number} now ms */
  sample(now) {
    this.series.sample(now, this.counts());
    this.#bin = Math.floor(now / BIN);
    for (const [id, row] of this.leaving) if (row.until <= now) this.leaving.delete(id);
  }

  /** How many calls of each tool run now. @returns {Map<string, number>} */
  running() {
    const counts = new Map();
    for (const row of this.runs.values()) {
      for (const tool of row.calls.values()) counts.set(tool, (counts.get(tool) ?? 0) + 1);
    }
    return counts;
  }
}

/** The state of a row, as it is shown. */
export const stateOf = (row) => (row.state === 'idle' ? 'queued' : row.state);

const span = (begin, end) => Date.parse(end) - Date.parse(begin);
const isRoot = (event) => event.chain_id === event.run_id;

function toolEnd(row, event) {
  row.calls.delete(event.call_id);
  row.waiting.delete(event.call_id);
  if (event.will_retry) return;
  const status = event.status ?? 'success';
  this.totals.tool_calls += 1;
  this.totals.tool_failures += status === 'success' ? 0 : 1;
  this.series.take('tools', { ts: event.ts, tool: event.tool, status, duration_ms: event.duration_ms, attempt: event.attempt });
}

/** What each kind of event changes; `this` is the fleet. */
const TAKES = {
  input(row, event) {
    if (isRoot(event)) Object.assign(row, { user_id: event.user_id, model: event.model });
  },
  state(row, event) {
    if (!isRoot(event)) return;
    if (row.state === 'suspended') row.waited_ms += span(row.since, event.ts);
    Object.assign(row, { state: event.current, since: event.ts });
  },
  model_start(row, event) {
    row.model = event.model;
    if (isRoot(event)) Object.assign(row, { iteration: event.iteration, model_began: event.ts });
  },
  model_complete(row, event) {
    row.input_tokens += event.usage.input_tokens;
    row.output_tokens += event.usage.output_tokens;
    const first = event.first_chunk_ms ?? null;
    if (row.first_chunk_ms === null && first !== null && row.model_began) row.first_chunk_ms = span(row.began, row.model_began) + first;
    this.totals.model_calls += 1;
    this.series.take('models', { ts: event.ts, input_tokens: event.usage.input_tokens, output_tokens: event.usage.output_tokens });
  },
  tool_start: (row, event) => row.calls.set(event.call_id, event.tool),
  tool_complete: toolEnd,
  tool_error: toolEnd,
  approval: (row, event) => row.waiting.add(event.call_id),
  question: (row, event) => row.waiting.add(event.question_id),
  resolved: (row, event) => row.waiting.delete(event.target),
  warning(row, event) {
    if (row.marks.length < 8 && !row.marks.includes(event.code)) row.marks.push(event.code);
  },
};
