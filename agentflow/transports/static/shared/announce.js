/** What is read aloud: whole paragraphs of an answer, at most one in three seconds, and what cannot wait. */

import { h, setText } from './dom.js';

const PAUSE = 3000; // ms

/** Two hidden regions, to be put into the page once. */
export function announcer() {
  const polite = h('div', { class: 'unseen', 'aria-live': 'polite' });
  const assertive = h('div', { class: 'unseen', 'aria-live': 'assertive' });
  let waiting = [];
  let timer = null;

  function speak() {
    timer = null;
    if (waiting.length === 0) return;
    setText(polite, waiting.join('\n'));
    waiting = [];
    timer = setTimeout(speak, PAUSE);
  }

  return {
    nodes: [polite, assertive],
    /** Say it when there is a pause. @param {string} text */
    say(text) {
      waiting.push(text);
      if (timer === null) speak();
    },
    /** Say it now. @param {string} text */
    interrupt: (text) => setText(assertive, text),
    /** Forget what was to be said. */
    hush() {
      waiting = [];
    },
  };
}
