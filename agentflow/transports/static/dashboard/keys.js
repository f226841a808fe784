/** The keys of the page, and their list. Nothing is done while an input method composes. */

import { h } from '../shared/dom.js';
import { lasting } from '../shared/storage.js';
import { t } from './texts.js';

/** Whether keys without a modifier do anything outside fields. */
export const lettersWork = () => lasting.get('letters') !== 'off';

const LIST = [
  [['Space'], 'key.pause'], [['1', '2', '3'], 'key.window'], [['/'], 'key.filter'], [['J', 'K'], 'key.rows'],
  [['→', '←'], 'key.fold'], [['Enter'], 'key.enter'], [['F'], 'key.failure'], [['Esc'], 'key.back'], [['?'], 'key.list'],
];

/** What each key does, by its name in `does`. */
const KEYS = {
  ' ': (does) => does.turnPause(), 1: (does) => does.setWindow('5m'), 2: (does) => does.setWindow('15m'), 3: (does) => does.setWindow('1h'),
  '/': (does) => does.filter(), j: (does) => does.move(1), k: (does) => does.move(-1), ArrowRight: (does) => does.fold(false),
  ArrowLeft: (does) => does.fold(true), Enter: (does) => does.enter(), f: (does) => does.nextFailure(), '?': (does) => does.showKeys(),
};

/** @param {object} does One function for each thing; `back` too. */
export function listenForKeys(does) {
  document.addEventListener('keydown', (event) => {
    if (event.isComposing || event.keyCode === 229 || event.defaultPrevented) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'Escape') {
      does.back(event.target);
      return;
    }
    const { target } = event;
    const inField = target.matches?.('input, textarea, select, dialog, dialog *') ?? false;
    const presses = (event.key === ' ' || event.key === 'Enter') && (target.matches?.('button, a, summary') ?? false);
    if (inField || presses || !lettersWork()) return;
    const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (act === undefined) return;
    event.preventDefault();
    act(does);
  });
}

/** The list of keys, beside the page and over it. */
export function keysView() {
  const rows = LIST.map(([keys, text]) => h('li', {}, h('span', {}, ...keys.map((key) => h('kbd', {}, key))), t(text)));
  const node = h('section', { class: 'key-list panel', testid: 'keys', hidden: true, 'aria-label': t('keys') }, h('h2', {}, t('keys')), h('ul', {}, ...rows));
  return {
    node,
    turn: () => (node.hidden = !node.hidden),
    /** Close it, and say whether it was open. */
    close() {
      const was = !node.hidden;
      node.hidden = true;
      return was;
    },
  };
}
