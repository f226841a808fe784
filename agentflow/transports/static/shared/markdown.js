/**
 * Markdown that grows. What is Markdown is decided by `marked`; what becomes of it is decided here, element by element:
 * tags in the text stay text, pictures are links, and links are http, https or mailto. No markup is ever parsed.
 */

import { Lexer } from '../vendor/marked.js';
import { drawing, h, setAttribute } from './dom.js';
import { highlight } from './highlight.js';
import { COPY } from './icons.js';
import { t } from './i18n.js';

const CLOSED_FENCE = /\n {0,3}(?:`{3,}|~{3,})[ \t]*\n*$/;
const ENTITY = /&(?:#\d{1,7}|#x[\da-f]{1,6}|[a-z][\da-z]{1,31});/gi;
const PROTOCOLS = new Set(['http:', 'https:', 'mailto:']);
const INLINE = { strong: 'strong', em: 'em', del: 'del' };

/** A text in Markdown that is written as it comes: what stands is not parsed again, but for its last block. */
export class Markdown {
  #text = '';
  #tail = ''; // the text from the last block on
  #last = 0; // how many elements stand before it
  #links = {}; // the addresses that the text defines under names
  #caret = h('span', { class: 'caret' });

  /** @param {HTMLElement} node Where it is shown; it holds nothing else. */
  constructor(node) {
    this.node = node;
  }

  /**
   * The text as it is now.
   * @param {string} text @param {boolean} live Whether more follows: then it ends with a caret.
   */
  write(text, live) {
    if (text === this.#text && live === this.#caret.isConnected) return;
    this.#caret.remove();
    if (!text.startsWith(this.#text)) {
      this.#text = this.#tail = '';
      this.#last = 0;
      this.#links = {};
      this.node.replaceChildren();
    }
    this.#tail += text.slice(this.#text.length);
    this.#text = text;
    if (!live && Object.keys(this.#links).length) {
      this.#tail = text; // what was named before its address was told is a link now
      this.#last = 0;
      this.#links = {}; // and an address of which only the beginning was there is whole
    }
    this.#render(live);
    if (live) endOf(this.node).append(this.#caret);
  }

  #render(live) {
    const tokens = blocksOf(this.#tail, this.#links);
    const made = [];
    const last = tokens.findLastIndex((token) => token.type !== 'space');
    tokens.forEach((token, at) => {
      const isOpen = live && at === last;
      const node = block(token, { isOpen, ending: isOpen ? this.#tail : null });
      if (node) made.push(node);
    });
    const standing = [...this.node.childNodes].slice(this.#last);
    made.forEach((node, at) => (standing[at] ? morph(standing[at], node) : this.node.append(node)));
    standing.slice(made.length).forEach((node) => node.remove());
    if (last > 0) {
      this.#tail = tokens
        .slice(last)
        .map((token) => token.raw)
        .join('');
      this.#last = this.node.childNodes.length - (tokens[last].type === 'def' ? 0 : 1);
    }
  }
}

/** The blocks of a text, which may define more links; what is nested deeper than can be parsed is one plain paragraph. */
function blocksOf(text, links) {
  const lexer = new Lexer();
  lexer.tokens.links = links;
  try {
    return lexer.lex(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return [{ type: 'html', raw: text, text }];
  }
}

/** Make one node like another, keeping what is the same. */
function morph(node, like) {
  if (node.nodeType !== like.nodeType || node.nodeName !== like.nodeName) {
    node.replaceWith(like);
    return;
  }
  if (node.nodeType === Node.TEXT_NODE) {
    if (like.data.startsWith(node.data)) node.appendData(like.data.slice(node.data.length));
    else node.data = like.data;
    return;
  }
  if (node.nodeName === 'BUTTON') return;
  for (const { name } of [...node.attributes]) if (!like.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of like.attributes) setAttribute(node, name, value);
  const children = [...node.childNodes];
  const wanted = [...like.childNodes];
  wanted.forEach((child, at) => (children[at] ? morph(children[at], child) : node.append(child)));
  children.slice(wanted.length).forEach((child) => child.remove());
}

/** Where the next letter would come. */
function endOf(node) {
  const child = node.lastElementChild;
  const holds = child && child === node.lastChild && !['HR', 'BR', 'BUTTON', 'A'].includes(child.nodeName);
  return holds ? endOf(child) : node;
}

// -- blocks ------------------------------------------------------------------------------------------------------

function block(token, how) {
  switch (token.type) {
    case 'space':
    case 'def':
      return null;
    case 'heading':
      return h(`h${Math.min(token.depth + 2, 6)}`, {}, ...inline(token.tokens, how));
    case 'code':
      return code(token, how.isOpen && !CLOSED_FENCE.test(token.raw));
    case 'blockquote':
      return h('blockquote', {}, ...token.tokens.map((one) => block(one, how)));
    case 'list':
      return list(token, how);
    case 'table':
      return table(token, how);
    case 'hr':
      return h('hr');
    case 'paragraph':
      return h('p', { dir: 'auto' }, ...inline(token.tokens, how));
    case 'text':
      return h('span', {}, ...inline(token.tokens ?? [token], how));
    case 'checkbox':
      return h('span', {}, token.checked ? '☑ ' : '☐ ');
    default:
      return h('p', { class: 'verbatim' }, token.raw.trim());
  }
}

function list(token, how) {
  const items = token.items.map((item) => h('li', {}, ...item.tokens.map((one) => block(one, how))));
  const start = token.ordered && token.start !== 1 ? token.start : null;
  return h(token.ordered ? 'ol' : 'ul', { start }, ...items);
}

function table(token, how) {
  const row = (cells, tag) =>
    h(
      'tr',
      {},
      ...cells.map((cell) => h(tag, { class: cell.align && `to-${cell.align}` }, ...inline(cell.tokens, how))),
    );
  const head = h('thead', {}, row(token.header, 'th'));
  const body = h('tbody', {}, ...token.rows.map((cells) => row(cells, 'td')));
  return h('div', { class: 'wide', tabindex: 0 }, h('table', {}, head, body));
}

function code(token, isOpen) {
  const name = (token.lang ?? '').trim().split(/\s/)[0].slice(0, 30);
  const text = isOpen ? [token.text] : highlight(token.text, name);
  const copy = h('button', { type: 'button', class: 'bare', 'data-copy': 'code', 'aria-label': t('copy.code') });
  copy.append(drawing(COPY));
  return h(
    'div',
    { class: 'code' },
    h('div', { class: 'code-head' }, h('span', {}, name), copy),
    h('pre', { tabindex: 0 }, h('code', {}, ...text)),
  );
}

// -- within a line -----------------------------------------------------------------------------------------------

/** The nodes of inline tokens. `how.ending` is the text that they may be at the end of. */
function inline(tokens, how) {
  return tokens.map((token) => {
    switch (token.type) {
      case 'strong':
      case 'em':
      case 'del':
        return h(INLINE[token.type], {}, ...inline(token.tokens, how));
      case 'codespan':
        return h('code', {}, token.text);
      case 'br':
        return h('br');
      case 'link':
        return link(token, how);
      case 'image':
        return anchor(token.href, [decoded(token.text) || token.href]);
      case 'text':
        return token.tokens ? h('span', {}, ...inline(token.tokens, how)) : decoded(token.text);
      case 'escape':
        return token.text;
      case 'checkbox':
        return token.checked ? '☑ ' : '☐ ';
      default:
        return token.raw;
    }
  });
}

/** A link; one that may still be going on is text until it ends. */
function link(token, how) {
  if (token.raw === token.text && how.ending?.endsWith(token.raw)) return token.text;
  return anchor(token.href, inline(token.tokens, how));
}

function anchor(href, children) {
  const address = safe(decoded(href));
  if (address === null) return h('span', {}, ...children);
  return h('a', { href: address, target: '_blank', rel: 'noopener noreferrer nofollow' }, ...children);
}

/** The address, if it may be gone to; no relative one, which would be this server's. */
function safe(href) {
  if (!URL.canParse(href)) return null;
  const url = new URL(href);
  return PROTOCOLS.has(url.protocol) ? url.href : null;
}

const decoder = document.createElement('textarea');

/** A text with its entities as the letters they stand for. Nothing but one entity at a time is ever parsed. */
function decoded(text) {
  return text.replace(ENTITY, (entity) => {
    decoder.innerHTML = entity;
    return decoder.value;
  });
}
