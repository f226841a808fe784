/** The calls of one round: a row for each, which opens. */

import { now } from '../shared/clock.js';
import { drawing, h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { elapsed, number, size, span, t } from '../shared/i18n.js';
import { CHEVRON, RINGS } from '../shared/icons.js';

const LEVELS = 2; // of agents below the root that are shown

/** @param {object} at Where it stands: `turn`, `page`, `depth`. @param {Function} chainView See `parts`. */
export function toolsView(at, chainView) {
  const node = h('div', { class: 'group', role: 'list', 'aria-label': t('call.tools') });
  const rows = keyed(
    node,
    (call) => call.id,
    () => callView(at, chainView),
  );
  return { node, update: (part) => rows(part.calls) };
}

function callView(at, chainView) {
  let chosen = null; // whether a person has opened or closed it
  let state = null;
  let open = false;
  const ring = h('span', { class: 'ring' });
  const name = h('span', { class: 'tool-name' });
  const tag = h('span', { class: 'tag' }, t('call.agent'));
  const telling = h('span', { class: 'telling', dir: 'auto' });
  const status = h('span', { class: 'tool-status' });
  const time = h('span', { class: 'tool-time' });
  const row = h(
    'button',
    { type: 'button', class: 'tool-row', testid: 'tool-row', on: { click: () => ((chosen = !open), refresh()) } },
    ring,
    name,
    tag,
    telling,
    status,
    time,
    drawing(CHEVRON, 'chevron'),
  );
  const body = bodyView(at, chainView);
  const node = h('div', { class: 'tool', role: 'listitem' }, row, body.node);
  let call = null;
  return { node, update };

  function update(given) {
    call = given;
    refresh();
  }

  function refresh() {
    if (call.state !== state) {
      if (call.state === 'done' && chosen === null) chosen = at.page.isAtEnd() ? null : open || null;
      state = call.state;
      ring.replaceChildren(drawing(RINGS[state], state));
    }
    open = chosen ?? opensItself(call);
    setAttribute(row, 'data-state', state);
    setAttribute(row, 'data-tool', call.tool);
    setAttribute(row, 'aria-expanded', open ? 'true' : 'false');
    setText(name, call.tool);
    setText(telling, tellingOf(call));
    show(tag, call.child !== null);
    setText(status, statusOf(call, at.page.user));
    setText(time, timeOf(call));
    setAttribute(
      row,
      'aria-label',
      [call.tool, t(`call.${state}`), statusOf(call, at.page.user), call.duration && timeOf(call)]
        .filter(Boolean)
        .join(', '),
    );
    body.update(call, open, chosen === true);
  }
}

/** A row opens by itself when it fails for good, or has something to show while it runs. */
function opensItself(call) {
  if (call.state === 'failed' || call.state === 'unknown') return true;
  return (
    call.state === 'running' &&
    (call.child !== null || call.progress !== null || call.lines !== '' || call.item !== null)
  );
}

/** The most telling argument: the first text. */
function tellingOf(call) {
  const given = argumentsOf(call);
  const first = Object.values(given ?? {}).find((value) => typeof value === 'string');
  return (first ?? '').slice(0, 200);
}

function argumentsOf(call) {
  if (call.arguments !== null) return call.arguments;
  try {
    const parsed = JSON.parse(call.raw);
    return typeof parsed === 'object' && !Array.isArray(parsed) ? parsed : null;
  } catch {
    return null; // a model's own notation, which is shown as it is
  }
}

const DECIDED = { approved: 'approved', amended: 'amended', rejected: 'rejected' };

function statusOf(call, user) {
  if (call.resolved?.decision === 'expired') return t('expired');
  const decided = DECIDED[call.resolved?.decision];
  if (decided && call.state !== 'failed') return t(decided, { by: byOf(call.resolved, user) });
  if (call.pausedAt) return t('call.soon');
  switch (call.state) {
    case 'running':
      return call.attempt > 1 ? t('call.attempt', { attempt: call.attempt }) : '';
    case 'done':
      return '';
    case 'failed':
    case 'unknown':
      return call.status ? t(`status.${call.status}`) : t('call.failed');
    case 'cancelled':
      return call.status ? t(`status.${call.status}`) : t('call.cancelled');
    default:
      return t(`call.${call.state}`);
  }
}

/** Who decided: who looks at it, where the server has no names or this one. */
export const byOf = (resolved, user) => (resolved.by === null || resolved.by === user ? t('by.you') : resolved.by);

function timeOf(call) {
  if (call.duration !== null && call.state !== 'cancelled') return span(call.duration);
  if (call.state !== 'running' || !call.startedAt) return '';
  return elapsed((call.pausedAt ?? now()) - call.startedAt);
}

function bodyView(at, chainView) {
  const bar = progressView();
  const lines = h('pre', { class: 'lines', tabindex: 0 });
  const item = h('pre', { class: 'item' });
  const last = h('p', { class: 'aside' });
  const trouble = h('p', { class: 'trouble', dir: 'auto' });
  const thread = h('div', { class: 'thread' });
  const given = detailView(t('call.arguments'));
  const result = detailView(t('call.result'));
  const node = h(
    'div',
    { class: 'tool-body', testid: 'tool-body' },
    bar.node,
    lines,
    item,
    last,
    trouble,
    thread,
    given.node,
    result.node,
  );
  let chain = null;
  return { node, update };

  function update(call, open, whole) {
    show(node, open);
    if (!open) return;
    const running = call.state === 'running';
    bar.update(running ? call.progress : null);
    const follows = lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
    setText(lines, running ? call.lines : '');
    if (follows) lines.scrollTop = lines.scrollHeight;
    show(lines, running && call.lines !== '');
    setText(item, running ? (call.item ?? '') : '');
    show(item, running && Boolean(call.item));
    setText(last, call.failed ? t('call.last', { why: call.failed }) : '');
    show(last, Boolean(call.failed) && (running || whole));
    setText(trouble, troubleOf(call));
    show(trouble, trouble.textContent !== '');
    updateThread(call);
    given.update(whole ? argumentLines(call) : null);
    result.update(whole ? (call.result ?? null) : null, resultFacts(call));
  }

  function updateThread(call) {
    show(thread, call.child !== null);
    if (call.child === null) return;
    const below = at.turn.run.chains[call.child];
    if (chain?.id !== call.child) {
      chain = null;
      thread.replaceChildren();
      if (at.depth >= LEVELS) thread.append(h('p', { class: 'aside' }, t('call.deeper')));
    }
    if (!below || at.depth >= LEVELS) return;
    if (chain === null) {
      chain = { id: call.child, view: chainView(at.turn, at.page, at.depth + 1) };
      thread.append(chain.view.node);
    }
    chain.view.update(below);
  }
}

function progressView() {
  const done = h('div', { class: 'bar-done' });
  const bar = h('div', { class: 'bar', role: 'progressbar' }, done);
  const text = h('span', {});
  const message = h('span', { class: 'bar-message', dir: 'auto' });
  const node = h('div', { class: 'progress' }, bar, h('div', { class: 'bar-text' }, text, message));
  return {
    node,
    update(progress) {
      show(node, progress !== null);
      if (progress === null) return;
      const told = t('call.progress', { done: number(progress.done), total: number(progress.total) });
      const share = progress.total > 0 ? Math.min(Math.max(progress.done / progress.total, 0), 1) : 0;
      done.style.width = `${share * 100}%`;
      setAttribute(bar, 'aria-valuemin', 0);
      setAttribute(bar, 'aria-valuemax', progress.total);
      setAttribute(bar, 'aria-valuenow', progress.done);
      setAttribute(bar, 'aria-valuetext', told);
      setText(text, told);
      setText(message, typeof progress.message === 'string' ? progress.message : '');
    },
  };
}

function detailView(title) {
  const facts = h('span', { class: 'facts' });
  const text = h('pre', { tabindex: 0 });
  const node = h('div', { class: 'detail' }, h('div', { class: 'detail-head' }, h('span', {}, title), facts), text);
  return {
    node,
    update(value, told = '') {
      show(node, value !== null);
      setText(text, value ?? '');
      setText(facts, told);
    },
  };
}

function argumentLines(call) {
  const given = argumentsOf(call);
  if (given === null) return call.raw || null;
  const names = Object.keys(given);
  const width = Math.min(Math.max(0, ...names.map((name) => name.length)), 24);
  return names.map((name) => `${name.padEnd(width)}  ${JSON.stringify(given[name], null, 2)}`).join('\n');
}

function resultFacts(call) {
  if (call.result === null) return '';
  const facts = [size(call.result), call.truncated && t('call.truncated'), call.reusedFrom && t('call.reused')];
  return facts.filter(Boolean).join(' · ');
}

/** One sentence on why it failed, and what came of that. */
function troubleOf(call) {
  if (call.state === 'unknown') return t('call.unknown.text');
  if (call.state !== 'failed' || !call.error) return '';
  const why =
    call.status === 'timeout' && call.duration ? t('call.timeout', { span: span(call.duration) }) : call.error.message;
  return `${why} ${t('call.told')}`;
}
