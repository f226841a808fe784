/**
 * What has happened in the last hour, in bins of five seconds. Pure.
 *
 * What is not known is a hole and no zero: the time before anything was heard, and what was missed.
 */

import { Histogram } from './numbers.js';

export const BIN = 5000; // ms
const KEPT = 3_600_000 / BIN + 16; // bins

/** States of runs in flight, in the order in which they are always shown. */
export const STATES = ['thinking', 'awaiting_model', 'executing_tools', 'suspended', 'queued'];

/** By window: ms, and how many bins are one point of a curve. */
export const WINDOWS = { '5m': [300_000, 1], '15m': [900_000, 2], '1h': [3_600_000, 8] };

class Bin {
  ended = { final: 0, failed: 0, cancelled: 0 };
  duration = new Histogram();
  first = new Histogram();
  input = 0;
  output = 0;
  /** @type {number[] | null} Runs in flight by state, as they were last in this bin. */
  flying = null;
  /** @type {Map<string, Tool>} */
  tools = new Map();

  /** Forget the rows of a kind. @param {'runs' | 'tools' | 'models'} kind */
  clear(kind) {
    const { ended, duration, first, input, output, tools } = new Bin();
    Object.assign(this, { runs: { ended, duration, first }, models: { input, output }, tools: { tools } }[kind]);
  }

  tool(name) {
    let tool = this.tools.get(name);
    if (tool === undefined) this.tools.set(name, (tool = new Tool()));
    return tool;
  }
}

class Tool {
  calls = 0;
  retries = 0;
  duration = new Histogram();
  /** @type {Map<string, number>} Failures by status. */
  failures = new Map();
}

const NOT_FAILED = new Set(['rejected', 'amended', 'cancelled']);
const add = (counts, key, by = 1) => counts.set(key, (counts.get(key) ?? 0) + by);

export class Series {
  /** @type {Map<number, Bin>} By the number of the bin since 1970. */
  #bins = new Map();
  /** @type {[number, number][]} Spans of ms in which events were missed. */
  #holes = [];
  #since = { flying: -Infinity }; // by kind of row: from when all of it is known, ms

  /**
   * Take the rows that the server still has instead of our own for that time; older ones of ours are kept.
   * @param {'runs' | 'tools' | 'models'} kind
   * @param {object[]} rows The oldest first. @param {boolean} isAll Whether the server has let go of none.
   */
  reload(kind, rows, isAll) {
    const first = rows.length ? Math.floor(Date.parse(rows[0].ts) / BIN) + (isAll ? 0 : 1) : Infinity; // a whole bin
    for (const [number, bin] of this.#bins) if (number >= first) bin.clear(kind);
    for (const row of rows) if (Math.floor(Date.parse(row.ts) / BIN) >= first) this.take(kind, row);
    this.knows(kind, isAll ? -Infinity : Math.min(this.#since[kind] ?? Infinity, first * BIN));
  }

  /** All rows of a kind are known from then on. @param {'runs' | 'tools' | 'models'} kind @param {number} since ms */
  knows(kind, since) {
    this.#since[kind] = since;
  }

  /** Events of this span were missed. @param {number} from @param {number} to ms since 1970 */
  hole(from, to) {
    this.#holes.push([from, to]);
  }

  /** A run that has ended, a tool call, or a model call. @param {'runs' | 'tools' | 'models'} kind @param {object} row */
  take(kind, row) {
    const bin = this.#bin(Date.parse(row.ts));
    if (kind === 'runs') {
      bin.ended[row.outcome] += 1;
      bin.duration.add(row.duration_ms - row.waited_ms);
      if (row.first_chunk_ms !== null) bin.first.add(row.first_chunk_ms);
    } else if (kind === 'models') {
      bin.input += row.input_tokens;
      bin.output += row.output_tokens;
    } else {
      const tool = bin.tool(row.tool);
      tool.calls += 1;
      tool.retries += row.attempt - 1;
      tool.duration.add(row.duration_ms);
      if (row.status !== 'success' && !NOT_FAILED.has(row.status)) add(tool.failures, row.status);
    }
  }

  /** How many runs are in flight now, by state. @param {number} now ms @param {number[]} counts */
  sample(now, counts) {
    this.#bin(now).flying = counts;
  }

  #bin(ms) {
    const number = Math.floor(ms / BIN);
    let bin = this.#bins.get(number);
    if (bin === undefined) {
      this.#bins.set(number, (bin = new Bin()));
      if (this.#bins.size > KEPT) this.#drop();
    }
    return bin;
  }

  #drop() {
    const newest = Math.max(...this.#bins.keys());
    for (const number of this.#bins.keys()) if (number <= newest - KEPT) this.#bins.delete(number);
    this.#holes = this.#holes.filter(([, to]) => to > (newest - KEPT) * BIN);
  }

  /** The holes that a window shows. @param {number} now @param {string} name @returns {[number, number][]} */
  holes(now, name) {
    return this.#holes.filter(([, to]) => to > now - WINDOWS[name][0]);
  }

  #isHole(from, to, kind) {
    return from < (this.#since[kind] ?? Infinity) || this.#holes.some(([begin, end]) => begin < to && end > from);
  }

  /**
   * The curves of a window: for each point its time in seconds and values, null where they are not known.
   * @param {number} now ms @param {string} name Of the window.
   */
  curves(now, name) {
    const [span, many] = WINDOWS[name];
    const size = many * BIN;
    const last = Math.floor(now / size);
    const times = [];
    const told = { flying: STATES.map(() => []), ended: [[], []], duration: [[], [], []], first: [[], [], []], tokens: [[], []] };
    for (let point = last - span / size + 1; point <= last; point += 1) {
      const [from, to] = [point * size, (point + 1) * size];
      const bins = Array.from({ length: many }, (_, at) => this.#bins.get(point * many + at)).filter(Boolean);
      times.push(Math.min(to, now) / 1000);
      const flying = this.#isHole(from, to, 'flying') ? null : bins.findLast((bin) => bin.flying)?.flying;
      told.flying.forEach((curve, at) => curve.push(flying ? flying[at] : null));
      this.#points(told, bins, [from, to], to > now); // a rate of a part of a bin would only be noise
    }
    return { times, ...told };
  }

  #points(told, bins, [from, to], isPart) {
    const isKnown = (kind) => !isPart && !this.#isHole(from, to, kind);
    const rate = (kind, pick) => (isKnown(kind) ? (bins.reduce((sum, bin) => sum + pick(bin), 0) / (to - from)) * 1000 : null);
    const push = (curves, values) => curves.forEach((curve, at) => curve.push(values[at]));
    push(told.ended, [rate('runs', (bin) => bin.ended.final), rate('runs', (bin) => bin.ended.failed)]);
    push(told.tokens, [rate('models', (bin) => bin.input), rate('models', (bin) => bin.output)]);
    for (const name of ['duration', 'first']) {
      const all = new Histogram();
      if (isKnown('runs')) for (const bin of bins) all.merge(bin[name]);
      push(told[name], all.quantiles([0.5, 0.95, 0.99]));
    }
  }

  /**
   * What each tool did in a window, by name.
   * @param {number} now ms @param {string} name Of the window.
   */
  tools(now, name) {
    const [span, many] = WINDOWS[name];
    const [first, last] = [Math.floor((now - span) / BIN) + 1, Math.floor(now / BIN)];
    const points = Math.ceil(span / BIN / many);
    /** @type {Map<string, object>} */
    const tools = new Map();
    for (let number = first; number <= last; number += 1) {
      for (const [tool, seen] of this.#bins.get(number)?.tools ?? []) {
        if (!tools.has(tool)) tools.set(tool, { tool, calls: 0, retries: 0, duration: new Histogram(), failures: new Map(), curve: new Array(points).fill(0) });
        const sum = tools.get(tool);
        sum.calls += seen.calls;
        sum.retries += seen.retries;
        sum.duration.merge(seen.duration);
        for (const [status, count] of seen.failures) add(sum.failures, status, count);
        sum.curve[Math.floor((number - first) / many)] += seen.calls;
      }
    }
    return [...tools.values()].map(summary(span));
  }
}

const summary = (span) => (sum) => {
  const failed = [...sum.failures.values()].reduce((all, count) => all + count, 0);
  const [worst] = [...sum.failures].sort(([, one], [, other]) => other - one);
  const [p50, p95] = sum.duration.quantiles([0.5, 0.95]);
  return {
    tool: sum.tool,
    calls: sum.calls,
    perMinute: sum.calls / (span / 60_000),
    curve: sum.curve,
    retries: sum.retries,
    p50,
    p95,
    failed,
    share: failed / sum.calls,
    worst: worst === undefined ? null : { status: worst[0], share: worst[1] / failed },
  };
};
