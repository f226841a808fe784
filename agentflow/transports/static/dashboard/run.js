/** One run: its summary, its events on a line, its steps against time, and the event that was chosen. Live to its end. */

import * as api from '../shared/api.js';
import { copy } from '../shared/clipboard.js';
import { now as serverNow } from '../shared/clock.js';
import { drawing, h, setAttribute, setText, show } from '../shared/dom.js';
import { follow } from '../shared/follow.js';
import { number, span } from '../shared/i18n.js';
import { COPY } from '../shared/icons.js';
import { gridView } from './grid.js';
import { BACK, MISSED } from './icons.js';
import { inspectorView } from './inspector.js';
import { lineView } from './line.js';
import { t } from './texts.js';
import { Axis, newWaterfall, rowsOf, take, waits } from './waterfall.js';

const PAUSE = 100; // ms between two paintings
const FAILURES = new Set(['tool_error', 'rollback', 'failed']);
const STATES = { idle: 'queued', completed: 'final' };

/** @param {{leaveRun: () => void}} page */
export function runView(page) {
  let [id, run, control, timer, chosen, isSent] = [null, newWaterfall(), null, null, null, false];
  const folded = new Set();
  const [title, state, input] = [h('h1', { class: 'mono' }), h('span', { class: 'chip', testid: 'run-state' }), h('span', { class: 'run-input', dir: 'auto' })];
  const back = h('button', { type: 'button', class: 'bare', 'aria-label': t('back'), on: { click: page.leaveRun } }, drawing(BACK));
  const save = h('button', { type: 'button', class: 'button', on: { click: download } }, drawing(MISSED), t('ndjson'));
  const replay = h('button', { type: 'button', class: 'button', on: { click: () => copy(`agentflow replay ${id}`, replay) } }, drawing(COPY), t('replay'));
  const cancel = h('button', { type: 'button', class: 'button', testid: 'cancel-run', on: { click: () => dialog.showModal() } }, t('cancel'));
  const answer = (name, primary, act) => h('button', { type: 'button', class: `button ${primary}`, testid: name, on: { click: () => (dialog.close(), act()) } }, t(name));
  const dialog = h('dialog', { class: 'panel ask', 'aria-label': t('cancel') }, h('p', {}, t('cancel.sure')), h('p', { class: 'answers' }, answer('cancel.no', '', () => {}), answer('cancel.yes', 'primary', stop)));
  const facts = h('dl', { class: 'facts' });
  const fault = h('p', { class: 'page-fault', role: 'alert', hidden: true });
  const line = lineView({ go });
  const grid = gridView({ choose: chooseRow, fold: (key) => foldRow(key, !folded.has(key)) });
  const inspector = inspectorView({ go, move });
  const head = h('header', { class: 'run-head' }, back, title, state, input, save, replay, cancel);
  const left = h('div', { class: 'run-left' }, h('div', { class: 'run-top' }, line.head, h('div', { class: 'run-axis' }, grid.ticks, line.node)), grid.node);
  const body = h('div', { class: 'run-body' }, left, inspector.node);
  const node = h('section', { class: 'run', testid: 'run-view', hidden: true }, head, fault, facts, body, dialog);
  return { node, show: open, move, nextFailure, fold, closeDialog: () => dialog.open };

  /** Show a run; null shows none, and stops following the one that was shown. */
  function open(wanted) {
    if (wanted === id) return;
    control?.abort();
    id = wanted;
    [run, chosen, isSent] = [newWaterfall(), null, false];
    folded.clear();
    show(fault, false);
    if (id === null) return;
    control = new AbortController();
    const { signal } = control;
    follow({ runId: id, onEvents: heard, onLost: () => schedule(), signal }).catch((error) => {
      if (signal.aborted) return;
      setText(fault, error.status === 404 ? t('gone') : t('refused', { why: error.message }));
      show(fault, true);
    });
    paint();
  }

  function heard(events) {
    for (const event of events) take(run, event);
    schedule();
  }

  function schedule() {
    timer ??= setTimeout(() => {
      timer = null;
      if (id === null) return;
      if (!document.hidden) paint();
      if (run.end === null && run.root !== null) schedule();
    }, PAUSE);
  }

  function paint() {
    const isLive = run.end === null;
    const begin = run.begin ?? serverNow();
    const now = isLive ? Math.max(serverNow(), run.last ?? 0) : run.last;
    const cuts = waits(run, now);
    const axis = new Axis(begin, Math.max(now, begin + 1), cuts);
    setText(title, id.slice(0, 13));
    const word = run.end?.type ?? STATES[run.root?.status] ?? run.root?.status ?? null;
    setText(state, isSent && isLive ? t('cancel.sent') : word === null ? t('loading') : t(`state.${word}`));
    setAttribute(state, 'data-state', word);
    setText(input, run.input && `“${run.input.slice(0, 200)}”`);
    show(cancel, isLive && run.root !== null);
    cancel.disabled = isSent;
    show(replay, !isLive);
    fillFacts(axis);
    line.update(run, axis, chosen);
    grid.update({ rows: rowsOf(run, folded), axis, now, isLive: isLive && run.root !== null, chosen: chosen === null ? null : run.rowOf.get(chosen) });
    const event = chosen === null ? null : run.events.find((one) => one.seq === chosen);
    inspector.update(event ?? null, run, event ? siblings(event) : []);
  }

  function fillFacts(axis) {
    const { facts: told } = run;
    const pairs = [
      [t('agent'), run.root?.label ?? ''],
      [t('working'), run.root ? span(axis.working) : ''],
      [t('waited'), axis.cut > 0 ? span(axis.cut) : '0'],
      [t('rounds'), number(told.rounds)],
      [t('model.calls'), told.replaced ? t('model.replaced', { count: number(told.models), replaced: number(told.replaced) }) : number(told.models)],
      [t('tool.calls'), told.failed ? t('tool.some.failed', { count: number(told.tools), failed: number(told.failed) }) : number(told.tools)],
      [t('tokens'), t('tokens.of', { input: number(told.input), output: number(told.output) })],
      [t('first'), told.first === null ? '' : span(told.first)],
      [t('events'), number(run.count)],
    ];
    if (facts.children.length === 0) facts.append(...pairs.map(([name]) => h('div', {}, h('dt', {}, name), h('dd'))));
    pairs.forEach(([, value], at) => setText(facts.children[at].lastChild, value));
  }

  function siblings(event) {
    const key = run.rowOf.get(event.seq);
    const row = run.steps.get(key) ?? run.chains.get(key);
    return row.kind === 'chain' ? [] : run.events.filter((one) => row.seqs.includes(one.seq));
  }

  /** Choose an event by its number. */
  function go(seq) {
    chosen = seq;
    paint();
    grid.node.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: 'nearest' });
  }

  function move(by) {
    if (run.events.length === 0) return;
    const at = run.events.findIndex((one) => one.seq === chosen);
    go(run.events[Math.min(Math.max(at + by, 0), run.events.length - 1)].seq);
  }

  function nextFailure() {
    const after = run.events.filter((one) => FAILURES.has(one.type));
    const next = after.find((one) => one.seq > (chosen ?? 0)) ?? after[0];
    if (next) go(next.seq);
  }

  function chooseRow(key) {
    const row = run.steps.get(key) ?? run.chains.get(key);
    if (row?.seqs.length) go(row.seqs.at(row.kind === 'chain' ? 0 : -1));
  }

  function fold(isFolded) {
    const key = chosen === null ? run.root?.key : run.events.find((one) => one.seq === chosen)?.chain_id;
    if (key) foldRow(key, isFolded);
  }

  function foldRow(key, isFolded) {
    if (isFolded) folded.add(key);
    else folded.delete(key);
    paint();
  }

  async function stop() {
    isSent = true;
    paint();
    try {
      await api.decide(id, 'cancel', {});
    } catch (error) {
      isSent = false;
      setText(fault, error instanceof api.Refusal ? t('refused', { why: error.message }) : t('unconnected'));
      show(fault, true);
    }
  }

  /** The events that are shown, without deltas, as a file. */
  function download() {
    const lines = run.events.map((event) => `${JSON.stringify(event)}\n`);
    const address = URL.createObjectURL(new Blob(lines, { type: 'application/x-ndjson' }));
    h('a', { href: address, download: `${id}.ndjson` }).click();
    URL.revokeObjectURL(address);
  }
}
