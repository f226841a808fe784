/** The keys of the page. Nothing is done while an input method composes. */

import { lasting } from '../shared/storage.js';

/** Whether keys without a modifier do anything outside fields. */
export const lettersWork = () => lasting.get('letters') !== 'off';

/**
 * @param {object} page
 * @param {{isEditing: () => boolean, isRunning: () => boolean, closeSomething: () => boolean}} now
 */
export function listenForKeys(page, now) {
  document.addEventListener('keydown', (event) => {
    if (event.isComposing || event.keyCode === 229 || event.defaultPrevented) return;
    const inField = event.target.matches?.('input, textarea, select') ?? false;
    if (event.key === 'Escape') {
      if (now.closeSomething()) return;
      if (now.isEditing()) page.endEditing();
      else if (now.isRunning()) page.stop();
    } else if (event.shiftKey && (event.ctrlKey || event.metaKey) && event.code === 'KeyO') {
      event.preventDefault();
      page.newChat();
    } else if (event.key === 'End' && !inField && !event.ctrlKey && lettersWork()) {
      event.preventDefault();
      page.toEnd();
    }
  });
}
