/** What the cards of approvals and questions share: a frame, and a decision that is sent once. */

import { Refusal, Unreached } from '../shared/api.js';
import { drawing, h, setText, show } from '../shared/dom.js';
import { t } from '../shared/i18n.js';

/**
 * A card with a head; it is a group that is read by its label.
 * @param {string} testid @param {string[]} drawn @param {string} title
 */
export function card(testid, drawn, title) {
  const aside = h('span', { class: 'card-aside' });
  const body = h('div', { class: 'card-body' });
  const fault = h('p', { class: 'fault', role: 'alert', hidden: true });
  const head = h('div', { class: 'card-head' }, drawing(drawn), h('span', { class: 'card-title' }, title), aside);
  const node = h('div', { class: 'card', role: 'group', 'aria-label': title, testid }, head, body, fault);
  return { node, body, aside, fault };
}

/**
 * Sends a decision, and no second one while the first is on its way. Its end is told by the run, not by the answer.
 * @param {HTMLElement} fault Where is told why it was refused.
 * @param {(sending: boolean) => void} onSending
 */
export function decider(fault, onSending) {
  let sending = false;
  return async (send) => {
    if (sending) return;
    sending = true;
    show(fault, false);
    onSending(true);
    try {
      await send();
    } catch (error) {
      if (!(error instanceof Refusal || error instanceof Unreached)) throw error;
      sending = false;
      onSending(false);
      setText(fault, error instanceof Refusal ? t('refused', { why: error.message }) : t('unsent.offline'));
      show(fault, true);
    }
  };
}
