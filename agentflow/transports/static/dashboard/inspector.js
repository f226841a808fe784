/** One event of a run, as it was written, and what else belongs to the same step. */

import { h, setText, show } from '../shared/dom.js';
import { number } from '../shared/i18n.js';
import { clock } from './chart.js';
import { t } from './texts.js';

const MOST = 4000; // characters of a value
const LINKS = 12; // events of the same step
const OWN = new Set(['type', 'run_id', 'chain_id', 'session_id', 'parent_chain_id', 'result', 'error', 'seq', 'ts', 'path']);

/** @param {{go: (seq: number) => void, move: (by: 1 | -1) => void}} run */
export function inspectorView(run) {
  const title = h('h2', { class: 'mono' });
  const status = h('span', { class: 'chip is-failed' });
  const key = (letter, name, by) => h('button', { type: 'button', 'aria-label': t(name), title: t(name), on: { click: () => run.move(by) } }, h('kbd', {}, letter));
  const fields = h('dl');
  const links = h('dl');
  const got = h('div', { class: 'got' });
  const none = h('p', { class: 'none' }, t('inspector.none'));
  const head = h('header', {}, title, status, h('span', { class: 'grow' }), key('K', 'previous', -1), key('J', 'next', 1));
  const node = h('aside', { class: 'inspector', 'aria-label': t('inspector'), testid: 'inspector' }, none, head, fields, links, got);
  let shown = null;
  return { node, update };

  /** @param {object | null} event @param {object} run @param {object[]} siblings Events of the same step. */
  function update(event, { count, begin }, siblings) {
    const state = event === null ? '' : `${event.seq} ${count} ${siblings.length}`;
    if (shown === state) return;
    shown = state;
    show(none, event === null);
    for (const part of [head, fields, links, got]) show(part, event !== null);
    if (event === null) return;
    setText(title, event.type);
    const word = event.status ?? event.error?.kind ?? '';
    setText(status, word);
    show(status, word !== '');
    const since = ((Date.parse(event.ts) - begin) / 1000).toFixed(3);
    fields.replaceChildren(
      ...pair('seq', t('of', { one: number(event.seq), all: number(count) })),
      ...pair('ts', `${clock(Date.parse(event.ts))}${event.ts.slice(19, 26)}, +${since} s`),
      ...pair('path', event.path.join(' / ')),
      ...Object.entries(event).filter(([name, value]) => !OWN.has(name) && value !== null).flatMap(([name, value]) => pair(name, text(value))),
      ...(event.error ? [...pair('error.kind', event.error.kind), ...pair('message', event.error.message)] : []),
    );
    links.replaceChildren(...linked(event, siblings));
    got.replaceChildren(...gotOf(event));
  }

  function linked(event, siblings) {
    const others = siblings.filter((one) => one.seq !== event.seq).slice(0, LINKS);
    const name = (one) => (one.seq < event.seq ? 'opened.by' : one === siblings.at(-1) ? 'closed.by' : 'then');
    return others.flatMap((one) => [h('dt', {}, t(name(one))), h('dd', {}, h('button', { type: 'button', class: 'text mono', on: { click: () => run.go(one.seq) } }, `${one.type} · seq ${one.seq}`))]);
  }
}

const pair = (name, value) => [h('dt', {}, name), h('dd', { class: 'mono', dir: 'auto' }, value)];

function text(value) {
  const told = typeof value === 'string' ? value : JSON.stringify(value, null, typeof value === 'object' ? 1 : 0);
  return told.length > MOST ? `${told.slice(0, MOST)}…` : told;
}

function gotOf(event) {
  if (event.result === undefined) return [];
  return [h('h3', {}, t('got')), h('pre', { class: 'mono', dir: 'auto' }, event.will_retry ? t('got.nothing') : text(event.result))];
}
