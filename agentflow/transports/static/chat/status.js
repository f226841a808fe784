/** The line above the composer: where the run stands, for how long, and what it took. */

import { now } from '../shared/clock.js';
import { h, setAttribute, setText, show } from '../shared/dom.js';
import { counted, elapsed, t } from '../shared/i18n.js';
import { progressOf, tokensOf, waiting } from './state.js';
import { tokensText } from './turn.js';

const BACK = 4000; // ms for which it is said that the connection is there again
const LONG = 30_000; // ms without a connection after which the run may be gone

/** @param {object} page `tryNow()`. */
export function statusView(page) {
  const dot = h('span', { class: 'dot' });
  const word = h('span', { class: 'status-word' });
  const detail = h('span', { class: 'status-detail' });
  const time = h('span', { class: 'status-more', 'aria-hidden': 'true' });
  const used = h('span', { class: 'status-more status-tokens', 'aria-hidden': 'true' });
  const line = h(
    'div',
    { id: 'status', class: 'status-line', role: 'status', testid: 'status' },
    dot,
    word,
    detail,
    time,
    used,
  );
  const tryNow = h('button', { type: 'button', class: 'text', on: { click: page.tryNow } }, t('lost.now'));
  const node = h('div', { class: 'status' }, line, tryNow);
  return {
    node,
    /** @param {import('./conversation.js').Conversation} conversation */
    update(conversation) {
      const { live, lost } = conversation;
      const told = statusOf(conversation);
      setAttribute(dot, 'data-kind', told.kind);
      setText(word, told.word);
      setText(detail, told.detail ?? '');
      const run = live?.run;
      const counts = run && run.startedAt !== null && !lost && run.state !== 'suspended';
      setText(time, told.more ?? (counts ? elapsed(now() - run.startedAt) : ''));
      setText(used, counts && tokensOf(run).output > 0 ? tokensText(tokensOf(run)) : '');
      show(tryNow, lost !== null);
    },
  };
}

/** The word for where it stands, what is beside it, and the kind that its dot has. */
function statusOf({ live, last, lost, backAt, stopping }) {
  if (lost) return lostStatus(lost);
  if (live === null) return endStatus(last);
  if (stopping) return { kind: 'off', word: t('stopping') };
  const isBack = backAt !== null && performance.now() - backAt < BACK;
  if (isBack) return { ...runStatus(live.run), detail: t('back') };
  return runStatus(live.run);
}

function lostStatus({ since, until }) {
  const at = performance.now();
  const seconds = Math.max(Math.ceil((until - at) / 1000), 0);
  if (at - since > LONG) return { kind: 'waiting', word: t('lost.long'), detail: t('lost.long.why') };
  return { kind: 'waiting', word: t('lost'), detail: t('lost.again', { seconds }) };
}

function endStatus(turn) {
  if (turn?.refused === 'offline' && !turn.run.accepted)
    return { kind: 'failed', word: t('offline'), detail: t('offline.none') };
  const end = turn?.run.end;
  if (end?.type === 'failed') return { kind: 'failed', word: t('failed'), detail: t('failed.kept') };
  if (end?.type === 'cancelled') return { kind: 'off', word: t('stopped'), detail: t('stopped.kept') };
  return { kind: 'ok', word: t('ready') };
}

function runStatus(run) {
  switch (run.state) {
    case 'suspended':
      return { kind: 'waiting', word: t('waits'), detail: waits(run), more: t('waits.quiet') };
    case 'executing_tools':
      return { kind: 'tools', word: t('running'), detail: t('running.done', progressOf(run)) };
    case 'awaiting_model':
      if (run.writing) return { kind: 'accent', word: t('writing') };
      return { kind: 'accent', word: t('asking', { model: run.asks }) };
    case 'idle':
      return { kind: 'accent', word: t('sending') };
    default:
      return { kind: 'thinking', word: t('thinking') };
  }
}

function waits(run) {
  const approvals = waiting(run, 'approval').length;
  const questions = waiting(run, 'question').length;
  const parts = [
    approvals && counted('waits.approvals', approvals),
    questions && counted('waits.questions', questions),
  ];
  return parts.filter(Boolean).join(', ');
}
