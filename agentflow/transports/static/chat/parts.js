/** The parts of a chain on the page, in their order; the calls of a round are in `tools`. */

import { drawing, h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { languageOf, number, span, t } from '../shared/i18n.js';
import { CHEVRON, RETRY, THOUGHT } from '../shared/icons.js';
import { Markdown } from '../shared/markdown.js';
import { approvalView } from './approval.js';
import { questionView } from './question.js';
import { toolsView } from './tools.js';

/**
 * A chain: the root's, or that of an agent that was called.
 * @param {object} turn @param {object} page @param {number} depth How many agents stand above it.
 */
export function chainView(turn, page, depth) {
  const node = h('div', { class: 'chain' });
  const parts = keyed(
    node,
    (part) => part.key,
    (part) => VIEWS[part.kind](part, { turn, page, depth }),
  );
  return { node, update: (chain) => parts(chain.parts) };
}

const VIEWS = {
  reasoning: reasoningView,
  text: textView,
  replaced: replacedView,
  tools: (part, at) => toolsView(at, chainView),
  approval: (part, { page }) => approvalView(part, page),
  question: (part, { page }) => questionView(part, page),
  note: noteView,
  summary: summaryView,
  gap: gapView,
  said: saidView,
};

function textView(part, { depth, page }) {
  const node = h('div', { class: 'answer', dir: 'auto', testid: depth === 0 ? 'answer' : 'child-answer' });
  const markdown = new Markdown(node);
  return {
    node,
    update(now) {
      show(node, now.text.trim() !== '');
      setAttribute(node, 'lang', languageOf(now.text));
      markdown.write(now.text, now.live);
      if (depth === 0) page.heard(now);
    },
  };
}

/** One row that opens. @param {string[]} drawn @param {string} [testid] */
function fold(drawn, name, testid) {
  const label = h('span', { class: 'fold-label' });
  const body = h('div', { class: `fold-body ${name}`, hidden: true, dir: 'auto' });
  const toggle = () => {
    show(body, body.hidden);
    setAttribute(row, 'aria-expanded', !body.hidden ? 'true' : 'false');
  };
  const row = h(
    'button',
    { type: 'button', class: `fold ${name}`, 'aria-expanded': 'false', on: { click: toggle } },
    drawing(drawn),
    label,
    drawing(CHEVRON, 'chevron'),
  );
  return { node: h('div', { class: 'fold-part', testid }, row, body), label, body };
}

function reasoningView() {
  const { node, label, body } = fold(THOUGHT, 'thinking', 'reasoning');
  return {
    node,
    update(now) {
      const told = now.from === null ? t('thought.some') : t('thought', { span: span(now.to - now.from) });
      setText(label, now.live ? t('thinking.live') : told);
      setText(body, now.text);
    },
  };
}

function replacedView(part) {
  const { node, label, body } = fold(RETRY, 'replaced', 'replaced');
  setText(label, replacedText(part));
  new Markdown(body).write(part.text, false);
  return { node, update: () => {} };
}

function replacedText({ reason, attempt, provider }) {
  if (reason === 'crashed' || reason === 'amended') return t(`replaced.${reason}`);
  return t(attempt === 1 ? 'replaced.first' : 'replaced', { attempt, provider });
}

function noteView(part) {
  const text = part.code === 'unsupported_success' ? t('note.unsupported_success') : part.text;
  return { node: h('p', { class: 'aside', dir: 'auto' }, text), update: () => {} };
}

function summaryView(part) {
  const { node, label, body } = fold([], 'summary');
  setText(label, t('summary', { first: part.first, last: part.last }));
  setText(body, part.text);
  return { node, update: () => {} };
}

function gapView(part, { turn, page }) {
  const load = h('button', { type: 'button', class: 'text', on: { click: () => page.reload(turn) } }, t('gap.load'));
  const text = t('gap', { count: number(part.missed) });
  return { node: h('p', { class: 'aside', testid: 'gap' }, `${text} `, load), update: () => {} };
}

/** What the user said in the middle of a turn. */
function saidView(part) {
  const node = h('div', { class: 'user' }, h('div', { class: 'bubble', dir: 'auto' }, part.text));
  return { node, update: () => {} };
}
