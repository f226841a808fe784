/** Copying, also where the browser allows no clipboard to pages without TLS. */

import { drawing, h } from './dom.js';
import { COPIED } from './icons.js';

const SHOWN = 1500; // ms

/** Copy a text, and let the button show it. @param {string} text @param {HTMLElement} button */
export async function copy(text, button) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text).catch(() => copyOld(text));
  else copyOld(text);
  const before = [...button.childNodes];
  if (button.dataset.copied) return;
  button.dataset.copied = 'yes';
  button.replaceChildren(drawing(COPIED));
  setTimeout(() => {
    button.replaceChildren(...before);
    delete button.dataset.copied;
  }, SHOWN);
}

function copyOld(text) {
  const field = h('textarea', { class: 'unseen', 'aria-hidden': 'true' });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand('copy');
  field.remove();
}
