// The parts of the pages that need no browser, on logs that test_pages.py has recorded: LOGS names the file.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

const STATIC = new URL('../../agentflow/transports/static/', import.meta.url);
const { FrameReader } = await import(new URL('shared/sse.js', STATIC));
const { callsOf, fold, newRun, rootOf, tokensOf } = await import(new URL('chat/state.js', STATIC));
const { runOfTurn } = await import(new URL('chat/stored.js', STATIC));

const LOGS = JSON.parse(readFileSync(process.env.LOGS, 'utf8'));

function folded(events) {
  const run = newRun();
  for (const event of events) fold(run, event);
  return run;
}

const answerOf = (run) => rootOf(run)?.parts.findLast((part) => part.kind === 'text')?.text ?? '';

function eventsIn(bytes, cuts) {
  const reader = new FrameReader();
  const pieces = cuts.map((cut, at) => bytes.subarray(at ? cuts[at - 1] : 0, cut));
  const data = [...pieces, bytes.subarray(cuts.at(-1) ?? 0)].flatMap((piece) => reader.read(piece));
  return { events: data.map((text) => JSON.parse(text)), lastId: reader.lastId };
}

for (const [name, log] of Object.entries(LOGS)) {
  const bytes = Buffer.from(log.stream, 'base64');
  const { events } = eventsIn(bytes, []);

  test(`${name}: a stream is read as what it says, wherever it is cut`, () => {
    assert.deepEqual(events, log.events);
    const last = log.events.at(-1);
    const step = Math.max(Math.floor(bytes.length / 400), 1);
    for (let cut = 0; cut < bytes.length; cut += step) {
      const read = eventsIn(bytes, [cut, Math.min(cut + 1, bytes.length)]);
      assert.equal(JSON.stringify(read.events), JSON.stringify(events), `cut at ${cut}`);
      assert.equal(read.lastId, `${last.run_id}:${last.seq}`);
    }
  });

  test(`${name}: the fold has what the server's own has`, () => {
    const run = folded(events);
    const { view } = log;
    assert.equal(answerOf(run), view.text);
    assert.deepEqual(
      callsOf(run).map((call) => [call.id, call.tool, call.endedAt === null ? '' : (call.status ?? 'success')]),
      view.tools.map((call) => [call.call_id, call.tool, call.status]),
    );
    assert.deepEqual(
      run.pending.map((part) => part.target),
      view.pending.map((one) => one.question_id ?? one.call_id),
    );
    assert.equal(tokensOf(run).output, view.usage.output_tokens);
    assert.equal(run.input, view.input);
    assert.equal(run.state, view.state);
    assert.equal(run.end !== null, view.state !== 'suspended');
  });

  test(`${name}: events that come again change nothing, and no beginning of a log is a fault`, () => {
    const twice = newRun();
    events.forEach((event, at) => {
      fold(twice, event);
      for (const before of events.slice(Math.max(at - 3, 0), at + 1)) fold(twice, before);
    });
    assert.deepEqual(twice, folded(events));
    for (let end = 0; end <= events.length; end += 1) {
      const run = folded(events.slice(0, end));
      assert.ok(run.guessed >= 0);
      assert.ok(run.pending.every((part) => part.resolved === null));
    }
  });

  test(`${name}: when it has ended nothing of it goes on`, () => {
    const run = folded(events);
    if (run.end === null) return;
    assert.equal(run.guessed, 0);
    for (const chain of Object.values(run.chains)) {
      assert.ok(
        chain.parts.every((part) => !part.live),
        chain.id,
      );
    }
    assert.ok(Object.values(run.calls).every((call) => call.endedAt !== null));
  });

  test(`${name}: keys of parts are different`, () => {
    for (const chain of Object.values(folded(events).chains)) {
      const keys = chain.parts.map((part) => part.key);
      assert.equal(new Set(keys).size, keys.length);
    }
  });

  test(`${name}: what is stored of it says the same`, () => {
    if (log.turn === null) return;
    const run = runOfTurn(log.turn);
    const live = folded(events);
    assert.equal(run.input, live.input);
    assert.deepEqual(
      callsOf(run).map((call) => call.tool),
      callsOf(live).map((call) => call.tool),
    );
    if (log.turn.outcome === 'final') {
      assert.equal(answerOf(run), answerOf(live));
      assert.deepEqual(
        callsOf(run).map((call) => call.state),
        callsOf(live).map((call) => call.state),
      );
    }
  });
}

test('what each log is there for is in it', () => {
  const { tools, replaced, changed, asked, below, stopped } = Object.fromEntries(
    Object.entries(LOGS).map(([name, log]) => [name, folded(log.events)]),
  );
  assert.deepEqual(
    rootOf(tools).parts.map((part) => part.kind),
    ['reasoning', 'text', 'tools', 'text'],
  );
  assert.deepEqual(
    callsOf(tools).map((call) => call.state),
    ['done', 'failed'],
  );
  assert.equal(callsOf(tools)[0].attempt, 2);
  assert.deepEqual(callsOf(tools)[0].progress, { done: 1, total: 2, message: 'half' });
  const [gone] = rootOf(replaced).parts;
  assert.deepEqual([gone.kind, gone.text, gone.attempt], ['replaced', 'Half of ', 1]);
  assert.deepEqual(callsOf(changed)[0].resolved.decision, 'amended');
  assert.equal(callsOf(changed)[0].arguments.amount, 20);
  assert.equal(waitingKinds(asked), 'question');
  assert.equal(Object.keys(below.chains).length, 2);
  assert.equal(below.chains[callsOf(below)[0].child].parts[0].text, 'Found it.');
  assert.equal(below.input, 'Ask below.');
  assert.deepEqual([stopped.end.type, stopped.end.reason], ['cancelled', 'user']);
});

const waitingKinds = (run) => run.pending.map((part) => part.kind).join();

test('a gap is told, and what follows it is taken', () => {
  const { events } = LOGS.tools;
  const gap = {
    type: 'gap',
    run_id: events[0].run_id,
    chain_id: events[0].chain_id,
    after_seq: 3,
    next_seq: 8,
    missed: 4,
  };
  const run = folded([...events.slice(0, 3), gap, ...events.slice(7)]);
  assert.equal(rootOf(run).parts.find((part) => part.kind === 'gap').missed, 4);
  assert.equal(run.seq, events.length);
});
