/** Code, coloured: comments, texts, numbers and common words. It guesses by the look and knows no language's grammar. */

import { h } from './dom.js';

const MOST = 20_000; // characters; longer code is left as it is

const WORDS = new Set(
  (
    'and as assert async await boolean break case catch class const continue def default del delete do done double ' +
    'elif else enum esac except export extends false False fi final finally float fn for from func function global go ' +
    'if impl import in instanceof int interface is lambda let long match mod module mut new nil None nonlocal not null ' +
    'of or package pass private protected pub public raise return select self static str string struct super switch ' +
    'then this throw throws trait true True try type typeof undefined union use using var void where while with yield ' +
    'SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE JOIN LEFT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL AS'
  ).split(' '),
);

const STRING = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|` + '`(?:[^`\\\\]|\\\\.)*`';
const SLASHES = String.raw`\/\/[^\n]*|\/\*[^]*?\*\/`;
const HASH = String.raw`#[^\n]*`;
const REST = String.raw`\b\d[\w.]*|[A-Za-z_]\w*`;

const HASHED = new Set('py python sh bash shell zsh rb ruby yaml yml toml ini r perl dockerfile make'.split(' '));
const PLAIN = new Set(['', 'text', 'txt', 'plain', 'md', 'markdown', 'html', 'xml', 'svg', 'diff', 'console', 'log']);

/**
 * The code as texts and spans.
 * @param {string} code @param {string} name The name of its language, as it was given.
 * @returns {(Node | string)[]}
 */
export function highlight(code, name) {
  const language = name.toLowerCase();
  if (PLAIN.has(language) || code.length > MOST) return [code];
  const comment = language === 'sql' ? String.raw`--[^\n]*` : HASHED.has(language) ? HASH : SLASHES;
  const found = new RegExp(`(${comment})|(${STRING})|(${REST})`, 'g');
  const parts = [];
  let at = 0;
  for (const match of code.matchAll(found)) {
    const kind = match[1] ? 'comment' : match[2] ? 'string' : kindOf(match[3]);
    if (kind === null) continue;
    parts.push(code.slice(at, match.index), h('span', { class: `code-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  parts.push(code.slice(at));
  return parts.filter((part) => part !== '');
}

function kindOf(word) {
  if (/^\d/.test(word)) return 'number';
  return WORDS.has(word) ? 'word' : null;
}
