/** The key of a server that has keys: asked for once, kept for the tab. */

import { Refusal, keepKey } from './api.js';
import { h, setText, show } from './dom.js';
import { t } from './i18n.js';

/**
 * What `first`, a first request, gives; with a key of the person's where the server wants one.
 * @template T
 * @param {HTMLElement} place Where the form stands while there is no key.
 * @param {() => Promise<T>} first
 * @param {[string, string] | null} [lacking] What is said to somebody whose key does not let in; without, it is a fault.
 * @returns {Promise<T>}
 */
export async function askForKey(place, first, lacking = null) {
  const form = formView();
  for (let asked = 0; ; asked += 1) {
    try {
      const value = await first();
      form.node.remove();
      return value;
    } catch (error) {
      const asksAgain = error instanceof Refusal && (error.status === 401 || (error.status === 403 && lacking !== null));
      if (!asksAgain) {
        form.node.remove();
        place.replaceChildren(h('p', { class: 'page-fault', role: 'alert' }, error.message));
        throw error;
      }
      keepKey(null);
      form.tell(error.status === 403 ? lacking : [t('key.title'), t('key.text')]);
      form.wrong(asked > 0 && error.status === 401);
      if (!form.node.isConnected) place.replaceChildren(form.node);
      keepKey(await form.given());
    }
  }
}

function formView() {
  const field = h('input', {
    type: 'password',
    class: 'field',
    id: 'key',
    autocomplete: 'current-password',
    required: true,
  });
  const wrong = h('p', { class: 'field-fault', role: 'alert', hidden: true }, t('key.wrong'));
  const send = h('button', { type: 'submit', class: 'button primary' }, t('key.send'));
  const title = h('h1');
  const text = h('p');
  const node = h(
    'form',
    { class: 'key-form', testid: 'key-form' },
    title,
    text,
    h('label', { for: 'key' }, t('key.label')),
    field,
    wrong,
    send,
  );
  return {
    node,
    tell([first, second]) {
      setText(title, first);
      setText(text, second);
    },
    wrong: (isWrong) => show(wrong, isWrong),
    given: () =>
      new Promise((resolve) => {
        node.onsubmit = (event) => {
          event.preventDefault();
          const key = field.value.trim();
          field.value = '';
          if (key) resolve(key);
        };
        field.focus();
      }),
  };
}
