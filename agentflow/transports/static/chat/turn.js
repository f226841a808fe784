/** A turn on the page: what the user said, what came of it, and how it ended. */

import { drawing, h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { counted, languageOf, number, span, t, tokens } from '../shared/i18n.js';
import { COPY, EDIT, ENDS, RETRY, WARNING } from '../shared/icons.js';
import { chainView } from './parts.js';
import { callsOf, rootOf, textOf, tokensOf } from './state.js';

/**
 * @param {object} turn See `conversation`.
 * @param {object} page What the page lets a turn do; see `main`.
 */
export function turnView(turn, page) {
  let version = turn.version;
  let shown = null;
  const user = userView(page);
  const body = h('div', { class: 'agent', testid: 'message-agent' });
  let chain = null;
  const closing = closingView(turn, page);
  const notesBelow = h('div', { class: 'notes' });
  const below = keyed(
    notesBelow,
    (note) => note.key,
    (note) => noteView(note, page),
  );
  const node = h('section', { class: 'turn' }, user.node, body, notesBelow, closing.node);
  return { node, update };

  function update(now) {
    const stands = now.follows ? null : `${now.version} ${now.run.seq} ${now.refused === null}`;
    if (stands !== null && stands === shown) return;
    shown = stands;
    user.update(now);
    const root = rootOf(now.run);
    if (version !== now.version) {
      version = now.version;
      body.replaceChildren();
      chain = null;
    }
    if (root && chain === null) {
      chain = chainView(now, page, 0);
      body.append(chain.node);
    }
    chain?.update(root);
    show(body, root !== undefined && root.parts.length > 0);
    below(notesOf(now));
    closing.update(now);
  }
}

function userView(page) {
  let turn = null;
  const text = h('div', { class: 'bubble', dir: 'auto', testid: 'message-user' });
  const edit = h(
    'button',
    {
      type: 'button',
      class: 'bare',
      testid: 'edit',
      'aria-label': t('edit'),
      on: { click: () => page.edit(turn.run.input) },
    },
    drawing(EDIT),
  );
  const why = h('span', { class: 'refused' });
  const again = h('button', { type: 'button', class: 'text', on: { click: () => page.sendAgain(turn) } }, t('again'));
  const unsent = h('div', { class: 'unsent', role: 'alert' }, why, again);
  const node = h('div', { class: 'user' }, h('div', { class: 'said' }, edit, text), unsent);
  return {
    node,
    update(now) {
      turn = now;
      setText(text, now.run.input);
      setAttribute(text, 'lang', languageOf(now.run.input));
      text.classList.toggle('outline', !now.run.accepted);
      show(node, now.run.input !== '');
      const unsentNow = now.refused !== null && !now.run.accepted;
      show(unsent, unsentNow);
      if (unsentNow) {
        setText(why, now.refused === 'offline' ? t('unsent.offline') : t('unsent', { why: now.refused.message }));
      }
    },
  };
}

/** What is to be said of a turn's end beside the line that closes it. */
function notesOf(turn) {
  const { run, refused } = turn;
  if (refused !== null && run.accepted) {
    const gone = refused.status === 404;
    return [{ key: 'gone', kind: 'failed', turn, text: gone ? t('gone') : t('refused', { why: refused.message }) }];
  }
  if (run.end?.type === 'failed') {
    const { error } = run.end;
    if (!error) return [{ key: 'failed', kind: 'failed', turn, text: t('ended.stored.failed') }];
    return [{ key: 'failed', kind: 'failed', turn, text: error.message, detail: error.kind, again: error.retryable }];
  }
  const finish = run.end?.finish;
  if (run.end?.type !== 'final' || !finish || finish === 'stop') return [];
  const text = t(`finish.${finish}`, { count: number(run.end.iterations) });
  return [{ key: 'finish', kind: 'limit', turn, text, goOn: finish === 'max_iterations' || finish === 'budget' }];
}

function noteView(first, page) {
  let note = first;
  const text = h('p', { dir: 'auto' });
  const detail = h('p', { class: 'mono' });
  const button = (testid, key, act) =>
    h('button', { type: 'button', class: 'button', testid, on: { click: () => act(note.turn) } }, t(key));
  const again = button('retry', 'retry', page.retry);
  const goOn = button('continue', 'continue', page.goOn);
  const failed = first.kind === 'failed';
  const node = h(
    'div',
    { class: `note ${first.kind}`, role: failed ? 'alert' : 'note', testid: failed ? 'error' : 'note' },
    drawing(WARNING),
    h('div', { class: 'note-text' }, text, detail),
    again,
    goOn,
  );
  return {
    node,
    update(now) {
      note = now;
      setText(text, now.text);
      setText(detail, now.detail ?? '');
      show(detail, Boolean(now.detail));
      show(again, Boolean(now.again));
      show(goOn, Boolean(now.goOn));
    },
  };
}

function closingView(first, page) {
  let turn = first;
  const mark = h('span', { class: 'mark' });
  const text = h('span', { class: 'closing-text' });
  const button = (testid, key, drawn, act) =>
    h('button', { type: 'button', class: 'bare', testid, 'aria-label': t(key), on: { click: act } }, drawing(drawn));
  const copy = button('copy', 'copy', COPY, () => page.copyAnswer(turn.run, copy));
  const retry = button('retry', 'retry', RETRY, () => page.retry(turn));
  const line = h('div', { class: 'closing', testid: 'closing-line' }, mark, text, copy, retry);
  const node = h('div', { class: 'closing-place' });
  let shown = null;
  return {
    node,
    update(now) {
      turn = now;
      const { end } = now.run;
      if (end === null) {
        line.remove();
        return;
      }
      if (!line.isConnected) node.append(line);
      if (shown !== end.type) {
        shown = end.type;
        mark.replaceChildren(drawing(ENDS[end.type], end.type));
      }
      setText(text, closingText(now.run));
      show(copy, textOf(now.run) !== '');
    },
  };
}

function closingText(run) {
  const { end } = run;
  if (end.stored) return t(end.type === 'final' ? 'ended.stored' : `ended.stored.${end.type}`);
  const values = { span: span(end.duration), run: run.id.slice(0, 8) };
  const calls = callsOf(run).length;
  const counts = [
    calls > 0 && end.type === 'final' ? counted('ended.tools', calls) : null,
    end.type === 'failed' ? null : tokensText(tokensOf(run)),
  ];
  const first = {
    final: () => values.span,
    failed: () => t('ended.failed', values),
    cancelled: () => t(`ended.${end.reason}`, values),
  }[end.type]();
  return [first, ...counts.filter(Boolean)].join(' · ');
}

/** "1,204 in · ~186 out": what is not exact is told as such. @param {object} used See `tokensOf`. */
export function tokensText({ input, output, estimated, guessed }) {
  const told = (key, count, about) => t(about ? `${key}.about` : key, { count: tokens(count) });
  return `${told('tokens.in', input, estimated)} · ${told('tokens.out', output, estimated || guessed)}`;
}
