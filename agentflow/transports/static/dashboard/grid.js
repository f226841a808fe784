/** The waterfall: a row for each step of a run, and its bars against time. */

import { drawing, h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { number, span } from '../shared/i18n.js';
import { CHEVRON, QUESTION, RINGS } from '../shared/icons.js';
import { CHAIN, SQUARE } from './icons.js';
import { step } from './numbers.js';
import { t } from './texts.js';

const MARKS = 6; // of the axis, about
const TURN = 0.62; // where a bar ends from which on its label stands before it
const STATUSES = { running: 'running', done: 'done', waiting: 'waiting', queued: 'queued', cancelled: 'cancelled', rejected: 'cancelled', amended: 'cancelled', unknown_outcome: 'unknown' };
const LEGEND = ['until', 'model', 'tool', 'failed', 'replaced', 'waiting', 'backoff'];

/** @param {{choose: (key: string) => void, fold: (key: string) => void}} run */
export function gridView(run) {
  const ticks = h('div', { class: 'ticks', 'aria-hidden': 'true' });
  const guides = h('div', { class: 'guides', 'aria-hidden': 'true' });
  const present = h('i', { class: 'present', hidden: true });
  const body = h('div', { class: 'steps', role: 'treegrid', 'aria-label': t('waterfall'), testid: 'waterfall' });
  const place = keyed(body, (item) => item.row.key, (item) => (item.row.kind === 'round' ? roundView() : rowView(run)));
  const legend = h('div', { class: 'legend' }, ...LEGEND.map((kind) => h('span', {}, h('i', { class: 'bar', 'data-kind': kind }), t(`legend.${kind}`))));
  return { ticks, node: h('div', { class: 'grid-box' }, guides, present, body, legend), update };

  /** @param {{rows: object[], axis: object, now: number, isLive: boolean, chosen: string | null}} told */
  function update({ rows, axis, now, isLive, chosen }) {
    const marks = axis.ticks(step(axis.working / MARKS));
    ticks.replaceChildren(...marks.filter(({ at }) => at < 0.96).map(({ at, elapsed }) => placed(h('span', {}, elapsed === 0 ? '0 s' : whole(elapsed)), at)));
    guides.replaceChildren(...marks.map(({ at }) => placed(h('i'), at)), ...axis.stubs().map(([from, to]) => sized(h('i', { class: 'stub' }), from, to)));
    show(present, isLive);
    if (isLive) present.style.setProperty('--at', axis.at(now));
    place(rows.map((row) => ({ row, axis, now, isChosen: row.key === chosen })));
  }
}

const whole = (ms) => (ms < 1000 || ms % 1000 === 0 || ms >= 60_000 ? span(Math.round(ms)).replace('.0 s', ' s') : span(Math.round(ms)));

function placed(node, at) {
  node.style.setProperty('--at', at);
  return node;
}

function sized(node, from, to) {
  node.style.setProperty('--at', from);
  node.style.setProperty('--width', Math.max(to - from, 0));
  return node;
}

function roundView() {
  const cell = h('span', { role: 'gridcell' });
  const node = h('div', { class: 'round', role: 'row', 'aria-level': '2' }, cell);
  return { node, update: ({ row }) => setText(cell, row.number === 0 ? t('round.none') : t('round', { number: row.number })) };
}

function rowView(run) {
  const icon = h('span', { class: 'step-icon' });
  const [label, note, times] = [h('span', { class: 'step-name' }), h('span', { class: 'faint note' }), h('span', { class: 'bar-label' })];
  const fold = h('button', { type: 'button', class: 'bare small fold', tabindex: '-1', on: { click: (event) => (event.stopPropagation(), run.fold(key)) } }, drawing(CHEVRON));
  const bars = h('span', { class: 'bars', role: 'gridcell' });
  const node = h('div', { class: 'step', role: 'row', tabindex: '-1', testid: 'step', on: { click: () => run.choose(key) } }, h('span', { class: 'step-head', role: 'rowheader' }, fold, icon, label, note), bars);
  let key = null;
  let drawn = '';
  let shownIcon = null;
  return { node, update };

  function update({ row, axis, now, isChosen }) {
    key = row.key;
    setAttribute(node, 'aria-level', row.depth + 1);
    setAttribute(node, 'aria-expanded', row.canFold ? String(!row.isFolded) : null);
    setAttribute(node, 'aria-selected', String(isChosen));
    setAttribute(node, 'tabindex', isChosen || row.depth === 0 ? '0' : '-1');
    setAttribute(node, 'data-kind', row.kind);
    setAttribute(node, 'data-status', row.status);
    node.style.setProperty('--depth', row.depth);
    show(fold, row.canFold === true);
    const name = iconOf(row);
    if (name !== shownIcon) {
      shownIcon = name;
      setAttribute(icon, 'data-icon', name);
      icon.replaceChildren(drawing({ model: SQUARE, chain: CHAIN, question: QUESTION }[name] ?? RINGS[name]));
    }
    setText(label, row.label);
    label.classList.toggle('mono', row.kind !== 'chain');
    setText(note, noteOf(row));
    draw(row, axis, now);
  }

  function draw(row, axis, now) {
    const told = JSON.stringify([row.bars, axis.from, axis.working, axis.cut, row.bars.some((bar) => bar.to === null) ? now : 0]);
    if (told === drawn) return;
    drawn = told;
    const pieces = row.bars.map((bar) => {
      const [from, to] = [axis.at(bar.from), axis.at(bar.to ?? now)];
      const piece = sized(h('i', { class: 'bar', 'data-kind': bar.kind, 'data-open': bar.to === null }), from, to);
      for (const cut of bar.cuts.slice(-200)) piece.append(placed(h('i'), to > from ? (axis.at(cut) - from) / (to - from) : 0));
      return piece;
    });
    bars.replaceChildren(...pieces);
    const end = row.bars.length ? axis.at(Math.max(...row.bars.map((bar) => bar.to ?? now))) : 0;
    const start = row.bars.length ? axis.at(row.bars[0].from) : 0;
    const text = row.kind === 'chain' && row.depth === 0 ? '' : timesOf(row, now);
    if (!text) return;
    setText(times, text);
    times.classList.toggle('is-failed', iconOf(row) === 'failed');
    times.classList.toggle('is-before', end > TURN && start > 1 - TURN);
    times.classList.toggle('is-inside', end > TURN && start <= 1 - TURN);
    times.style.setProperty('--at', end > TURN && start > 1 - TURN ? start : end);
    bars.append(times);
  }
}

function iconOf(row) {
  if (row.kind === 'model' || row.kind === 'chain' || row.kind === 'question') return row.kind;
  return STATUSES[row.status] ?? 'failed';
}

function noteOf(row) {
  const note = (row.call ?? row).note;
  if (note) {
    const decision = t(`decision.${note.decision}`);
    return note.by ? t('by', { decision, who: note.by }) : decision;
  }
  if (row.isChild) return t('child');
  return row.attempts > 1 ? `×${row.attempts}` : '';
}

/** What stands beside the bars: how long it took, and what was waited for. */
function timesOf(row, now) {
  const length = (bar) => (bar.to ?? now) - bar.from;
  const wait = row.bars.findLast((bar) => bar.kind === 'waiting');
  const work = row.bars.filter((bar) => bar.kind !== 'waiting' && bar.kind !== 'backoff' && bar.kind !== 'replaced' && bar.kind !== 'suspended');
  if (work.length === 0) return wait ? t(row.wait === 'question' ? 'bar.question' : 'bar.approval', { span: span(length(wait)) }) : '';
  const failed = row.kind === 'tool' && iconOf(row) === 'failed';
  const last = row.kind === 'tool' ? work.slice(-1) : work;
  const time = span(last.reduce((sum, bar) => sum + length(bar), 0));
  if (failed) return `${row.status} ${time}`;
  if (row.kind === 'model' && row.first !== null && row.attempts > 1) return t('bar.first', { span: time, first: span(row.first) });
  const updates = work.at(-1).cuts.length;
  return updates > 0 ? t('bar.updates', { span: time, count: number(updates) }) : time;
}
