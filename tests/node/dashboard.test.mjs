// The parts of the dashboard that need no browser; LOGS names the file with what test_dashboard_scripts.py recorded.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

const STATIC = new URL('../../agentflow/transports/static/dashboard/', import.meta.url);
const { Ceiling, Histogram, brief, grid, short, step } = await import(new URL('numbers.js', STATIC));
const { Series } = await import(new URL('series.js', STATIC));
const { Fleet } = await import(new URL('fleet.js', STATIC));
const { Order } = await import(new URL('order.js', STATIC));
const { Axis, newWaterfall, rowsOf, take, waits } = await import(new URL('waterfall.js', STATIC));

const LOGS = JSON.parse(readFileSync(process.env.LOGS, 'utf8'));
const { before, after, events } = LOGS.fleet;

test('the fleet comes from any snapshot and the events after it to the server\'s next', () => {
  const fleet = new Fleet();
  fleet.load(before);
  for (const event of events) fleet.take(event);
  assert.deepEqual(fleet.totals, after.totals);
  const rows = [...fleet.runs.values()].map(({ calls, waiting, ...row }) => ({
    ...row, tools: [...calls.values()].sort(), waits: waiting.size, calls: [...calls], waiting: [...waiting],
  }));
  assert.deepEqual(rows, after.runs);
});

test('the tools of a window are those of the rows that the server has', () => {
  const fleet = new Fleet();
  fleet.load(after);
  const told = fleet.series.tools(Date.parse(after.at), '5m');
  const rows = after.recent.tools;
  const isFailure = ({ status }) => !['success', 'rejected', 'amended', 'cancelled'].includes(status);
  for (const { tool, calls, failed } of told) {
    assert.equal(calls, rows.filter((row) => row.tool === tool).length);
    assert.equal(failed, rows.filter((row) => row.tool === tool && isFailure(row)).length);
  }
  assert.equal(told.reduce((sum, { calls }) => sum + calls, 0), rows.length);
});

test('shares of durations are within one per cent, also of two histograms together', () => {
  const [one, other] = [new Histogram(), new Histogram()];
  for (let ms = 1; ms <= 1000; ms += 1) (ms % 2 ? one : other).add(ms);
  one.merge(other);
  one.quantiles([0.5, 0.95, 0.99]).forEach((told, at) => assert.ok(Math.abs(told / [500, 950, 990][at] - 1) <= 0.0101, told));
  assert.deepEqual(new Histogram().quantiles([0.5]), [null]);
});

test('an axis rises by 1, 2, 5 at once, and falls after a window', () => {
  assert.deepEqual([0, 0.3, 1, 1.1, 4, 50, 51].map(step), [1, 0.5, 1, 2, 5, 50, 100]);
  const ceiling = new Ceiling();
  assert.deepEqual([[30, 0], [120, 10], [30, 20], [30, 109]].map(([most, now]) => ceiling.take(most, now, 100)), [50, 200, 200, 200]);
  assert.equal(ceiling.take(3, 110, 100), 50);
  for (const top of [1, 2, 5, 50, 200]) assert.ok([3].includes(grid(top).length), `${top}`);
});

test('numbers are short and have their units', () => {
  assert.deepEqual([8, 0.5, 999, 1200, 16_300, 2.5e6].map(short), ['8', '0.5', '999', '1.2k', '16.3k', '2.5M']);
  assert.deepEqual([312, 1560, 18_200, 252_000, 7_260_000].map(brief), ['312 ms', '1.6 s', '18 s', '4 m 12 s', '2 h 1 m']);
});

test('what was missed and what was before is a hole and no zero', () => {
  const series = new Series();
  const now = 1_800_000_000_000;
  series.knows('runs', now - 60_000);
  series.hole(now - 30_000, now - 20_000);
  series.take('runs', { ts: new Date(now - 40_000).toISOString(), outcome: 'final', duration_ms: 900, waited_ms: 400, first_chunk_ms: null });
  const { times, ended, duration } = series.curves(now, '5m');
  const at = (ms) => times.findIndex((time) => time * 1000 > now - ms);
  assert.equal(ended[0][at(100_000)], null);
  assert.equal(ended[0][at(25_000)], null);
  assert.equal(ended[0][at(40_000)], 0.2);
  assert.equal(ended[1][at(40_000)], 0);
  assert.ok(Math.abs(duration[0][at(40_000)] - 500) < 6);
});

test('a snapshot replaces what it still has, and what is older is kept', () => {
  const series = new Series();
  const now = 1_800_000_000_000;
  const row = (ago) => ({ ts: new Date(now - ago).toISOString(), input_tokens: 10, output_tokens: 5 });
  series.reload('models', [row(100_000), row(60_000), row(20_000)], true);
  series.reload('models', [row(60_000), row(20_000), row(10_000)], false);
  series.reload('models', [row(60_000), row(20_000), row(10_000)], false);
  const { tokens } = series.curves(now, '5m');
  assert.equal(tokens[0].reduce((sum, rate) => sum + (rate ?? 0), 0) * 5, 40);
});

test('rows keep their places for five seconds, and under the pointer', () => {
  const order = new Order();
  assert.deepEqual(order.take(['a', 'b', 'c'], 0, false), ['a', 'b', 'c']);
  assert.deepEqual(order.take(['d', 'c', 'a'], 100, true), ['a', 'b', 'c', 'd']);
  assert.deepEqual(order.take(['d', 'c', 'a'], 200, false), ['a', 'c', 'd']);
  assert.deepEqual(order.take(['d', 'c', 'a'], 6000, true), ['a', 'c', 'd']);
  assert.deepEqual(order.take(['d', 'c', 'a'], 6000, false), ['d', 'c', 'a']);
});

for (const [name, log] of Object.entries(LOGS.runs)) {
  test(`${name}: each step of a run has its row, and nothing is open at the end`, () => {
    const run = newWaterfall();
    for (const event of log) take(run, event);
    const rows = rowsOf(run, new Set());
    const calls = new Set(log.filter((event) => event.type === 'tool_start').map((event) => event.call_id));
    assert.equal(rows.filter((row) => row.kind === 'tool' || row.isChild).length, calls.size);
    assert.equal(rows.filter((row) => row.kind === 'model').length, new Set(log.filter((event) => event.type === 'model_start').map((event) => `${event.chain_id} ${event.iteration}`)).size);
    const ended = log.some((event) => ['final', 'failed', 'cancelled'].includes(event.type) && event.chain_id === event.run_id);
    if (ended) for (const row of [...run.steps.values(), ...run.chains.values()]) for (const bar of row.bars) assert.notEqual(bar.to, null, `${row.key} ${bar.kind}`);
    assert.equal(rowsOf(run, new Set([run.root.key])).length, 1);
    assert.equal(run.facts.replaced, log.filter((event) => event.type === 'rollback').length);
    const axis = new Axis(run.begin, Math.max(run.last, run.begin + 1), waits(run, run.last));
    const places = log.map((event) => axis.at(Date.parse(event.ts)));
    assert.ok(places.every((at, index) => at >= 0 && at <= 1 && (index === 0 || at >= places[index - 1])));
  });
}

test('waiting is cut out of the axis, and the marks after it tell the time that has passed', () => {
  const axis = new Axis(0, 20_000, [[4000, 16_000]]);
  assert.deepEqual([axis.working, axis.cut], [8000, 12_000]);
  assert.ok(Math.abs(axis.at(16_000) - axis.at(4000) - 0.06) < 1e-9);
  assert.deepEqual(axis.ticks(2000).map(({ elapsed }) => elapsed), [0, 2000, 16_000, 18_000]);
});
