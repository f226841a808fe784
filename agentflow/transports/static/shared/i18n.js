/** The page's own texts in the reader's language. What models, tools and people say is not translated. */

import { lasting } from './storage.js';
import { TEXTS } from './texts.js';

/** "en" or "zh": what was chosen, else what the browser prefers. */
export const language = document.documentElement.lang === 'zh' ? 'zh' : 'en';

/**
 * What gives a text of these, its `{names}` filled in. An unknown key is a fault of the page and raises.
 * @param {Record<string, [string, string]>} texts
 * @returns {(key: string, values?: Record<string, string | number>) => string}
 */
export function speaker(texts) {
  return (key, values = {}) => {
    const text = texts[key];
    if (text === undefined) throw new Error(`there is no text ${key}`);
    return text[language === 'zh' ? 1 : 0].replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  };
}

/** A text that pages share, or of the chat. */
export const t = speaker(TEXTS);

/** The text for one, or for several: `key.one` where there is one. @param {string} key @param {number} count */
export const counted = (key, count) => t(count === 1 ? `${key}.one` : key, { count: number(count) });

const NUMBERS = new Intl.NumberFormat('en-US');

/** A number with its thousands set apart. @param {number} value */
export const number = (value) => NUMBERS.format(value);

/** A span of time: "312 ms", "3.2 s", "4 m 12 s"; SI units in every language. @param {number} ms */
export function span(ms) {
  if (ms < 1000) return `${Math.max(Math.round(ms), 0)} ms`;
  if (ms < 60_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
}

/** Elapsed time while it runs: it starts in tenths, so that it does not jump between units. @param {number} ms */
export const elapsed = (ms) => (ms < 1000 ? `${(Math.max(ms, 0) / 1000).toFixed(1)} s` : span(ms));

/** A count of tokens, short from ten thousand on: "41.3k". @param {number} count */
export const tokens = (count) => (count < 10_000 ? number(count) : `${(count / 1000).toFixed(1)}k`);

/** A size of text in bytes: "1.1 KB". @param {string} text */
export function size(text) {
  const bytes = new TextEncoder().encode(text).length;
  return bytes < 1000 ? `${bytes} B` : `${(bytes / 1000).toFixed(1)} KB`;
}

/** Speak another language from now on: the page is made anew. @param {'en' | 'zh'} chosen */
export function speak(chosen) {
  lasting.set('language', chosen);
  location.reload();
}

/**
 * The language of a text, as the letters of its beginning tell: it stays the same when the text grows.
 * @param {string} text @returns {'zh' | 'en' | undefined}
 */
export function languageOf(text) {
  const start = text.slice(0, 200);
  const chinese = start.match(/[\u4e00-\u9fff]/g)?.length ?? 0;
  const latin = start.match(/[a-z]/gi)?.length ?? 0;
  if (chinese + latin === 0) return undefined;
  return chinese * 3 > latin ? 'zh' : 'en'; // a letter of the one is worth about three of the other
}
