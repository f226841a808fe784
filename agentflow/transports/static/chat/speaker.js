/** Says of a live run what has come since: its paragraphs when they are whole, what waits, and its end. */

import { t } from '../shared/i18n.js';

/** @param {ReturnType<typeof import('../shared/announce.js').announcer>} voice */
export function speaker(voice) {
  const asked = new Set();
  let turn = null;
  let part = null;
  let said = 0; // letters of the part

  return {
    /** A text of the root has grown. */
    heard(given) {
      if (turn === null) return;
      if (part !== given) {
        part = given;
        said = 0;
      }
      const end = given.live ? given.text.lastIndexOf('\n\n') : given.text.length;
      const fresh = given.text.slice(said, end).trim();
      if (end > said) said = end;
      if (fresh) voice.say(fresh);
    },
    /** The turn that is live now, if any. */
    attend(live) {
      if (live !== turn && turn?.run.end === null) voice.hush(); // another chat is looked at
      if (live === null && turn?.run.end?.type === 'final') voice.say(t('say.complete'));
      turn = live;
      for (const wait of live?.run.pending ?? []) {
        const key = `${live.run.id} ${wait.key}`;
        if (asked.has(key)) continue;
        asked.add(key);
        voice.interrupt(t(`${wait.kind}.said`, { tool: wait.tool, text: wait.text }));
      }
    },
  };
}
