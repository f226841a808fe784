/** The menu of a chat: what is rarely wanted. */

import { keepKey } from '../shared/api.js';
import { drawing, h, setAttribute, setText, show } from '../shared/dom.js';
import { t } from '../shared/i18n.js';
import { MORE } from '../shared/icons.js';
import { lasting, ofTab } from '../shared/storage.js';
import { lettersWork } from './keys.js';

/** @param {object} page `stop()`, `forget()`. */
export function menuView(page) {
  const entry = (act) => h('button', { type: 'button', class: 'menu-item', on: { click: act } });
  const letters = entry(() => {
    lasting.set('letters', lettersWork() ? 'off' : null);
    tell();
  });
  const signOut = entry(() => {
    keepKey(null);
    location.reload();
  });
  const forget = entry(() => {
    if (sure) {
      open(false);
      page.forget();
    }
    sure = !sure;
    tell();
  });
  const stop = entry(() => {
    open(false);
    page.stop();
  });
  setText(stop, t('stop.run'));
  let sure = false;
  const list = h('div', { class: 'menu-list', hidden: true }, stop, letters, signOut, forget);
  const button = h(
    'button',
    {
      type: 'button',
      class: 'bare',
      'aria-label': t('more'),
      'aria-haspopup': 'true',
      on: { click: () => open(list.hidden) },
    },
    drawing(MORE),
  );
  const node = h('div', { class: 'menu' }, button, list);
  document.addEventListener('pointerdown', (event) => node.contains(event.target) || open(false));
  return { node, update, close };

  function update(conversation) {
    show(stop, conversation.live !== null);
    show(forget, !conversation.isNew);
  }

  function open(out) {
    sure = false;
    show(list, out);
    setAttribute(button, 'aria-expanded', out ? 'true' : null);
    tell();
  }

  /** Close it, and say whether it was open. */
  function close() {
    const was = !list.hidden;
    open(false);
    return was;
  }

  function tell() {
    setText(letters, t(lettersWork() ? 'letters.on' : 'letters.off'));
    setText(signOut, t('signout'));
    show(signOut, ofTab.get('key') !== null);
    setText(forget, t(sure ? 'forget.sure' : 'forget'));
  }
}
