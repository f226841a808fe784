/** Where the turns stand: it follows what is new as long as its reader is at the end. */

import { drawing, h, keyed, setText, show } from '../shared/dom.js';
import { t } from '../shared/i18n.js';
import { DOWN } from '../shared/icons.js';
import { turnView } from './turn.js';

const NEAR = 48; // px from the bottom that still are the end
const UPWARDS = new Set(['ArrowUp', 'PageUp', 'Home']);

/** @param {object} page */
export function threadView(page) {
  const earlier = h('button', { type: 'button', class: 'text earlier', on: { click: page.loadEarlier } }, t('history'));
  const list = h('div', { class: 'turns', role: 'log', 'aria-live': 'off', 'aria-label': t('message') });
  const column = h('div', { class: 'column' }, earlier, list);
  const jump = h(
    'button',
    { type: 'button', class: 'jump', testid: 'jump', on: { click: toEnd } },
    drawing(DOWN),
    h('span', {}),
  );
  const scroller = h('div', { class: 'scroller', tabindex: -1 }, column);
  const node = h('div', { class: 'thread-place' }, scroller, jump);
  const turns = keyed(
    list,
    (turn) => turn.key,
    (turn) => turnView(turn, page),
  );
  let follows = true;
  let from = 0;
  const letGo = () => (follows = false);
  scroller.addEventListener('wheel', (event) => event.deltaY < 0 && letGo(), { passive: true });
  scroller.addEventListener('touchmove', letGo, { passive: true });
  scroller.addEventListener('keydown', (event) => UPWARDS.has(event.key) && letGo());
  scroller.addEventListener('scroll', () => {
    if (isAtEnd()) follows = true;
    else if (scroller.scrollTop < from) follows = false;
    from = scroller.scrollTop;
    refresh();
  });
  return { node, update, toEnd, isAtEnd: () => follows };

  function isAtEnd() {
    return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight <= NEAR;
  }

  function toEnd() {
    follows = true;
    scroller.scrollTop = scroller.scrollHeight;
    refresh();
  }

  function isSelected() {
    const selection = getSelection();
    return selection !== null && !selection.isCollapsed && list.contains(selection.anchorNode);
  }

  function refresh() {
    const below = !isAtEnd() && !follows;
    show(jump, below);
    if (below) setText(jump.lastChild, t(page.needsYou() ? 'jump.waiting' : 'jump.text'));
  }

  function update(conversation) {
    show(earlier, conversation.hasEarlier);
    turns(conversation.turns);
    if (follows && !isSelected()) scroller.scrollTop = scroller.scrollHeight;
    refresh();
  }
}
