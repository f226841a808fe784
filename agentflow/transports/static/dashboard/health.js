/** Pools, breakers, limiters and slow readers: the worst first, and of what is well only how many there are. */

import { h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { number } from '../shared/i18n.js';
import { brief, percent } from './numbers.js';
import { t } from './texts.js';

const MOST = 4; // lines of a panel

export function healthView() {
  const pools = panel('pools', poolRow, (pool) => `${pool.agent}/${pool.name}`);
  const breakers = panel('breakers', breakerRow, (breaker) => breaker.name);
  const limiters = panel('limiters', limiterRow, (limit) => limit.name);
  const readers = panel('readers', readerRow, (reader) => reader.run_id);
  const attention = panel('attention', attentionRow, (one) => `${one.what} ${one.name}`);
  attention.node.classList.add('attention');
  return {
    node: h('div', { class: 'row-of-four health' }, pools.node, breakers.node, limiters.node, readers.node, attention.node),
    /** @param {object | null} health What the server uses, as it told last. */
    update(health) {
      if (health === null) return;
      const manyAgents = new Set(health.pools.map((pool) => pool.agent)).size > 1;
      const named = health.pools.map((pool) => ({ ...pool, label: manyAgents ? `${pool.agent}/${pool.name}` : pool.name }));
      const busiest = named.sort((one, other) => other.queued - one.queued || other.busy / other.size - one.busy / one.size);
      const { waiting, refused } = health.limits;
      const open = health.limits.breakers.filter((breaker) => breaker.state !== 'closed').sort((one) => (one.state === 'open' ? -1 : 1));
      const closed = health.limits.breakers.length - open.length;
      const limits = Object.entries(refused).map(([name, count]) => ({ name, count })).sort((one, other) => other.count - one.count);
      if (waiting > 0) limits.unshift({ name: '', waiting });
      pools.update(busiest, t('pools.of'));
      breakers.update(open, t('breakers.closed', { count: number(closed) }), health.limits.breakers.length === 0);
      limiters.update(limits, t('limiters.of'));
      readers.update(health.slow_readers, t('readers.of', { slow: number(health.slow_readers.length), all: number(health.readers) }));
      const needs = needing(busiest, open, waiting, health.slow_readers);
      attention.update(needs, number(needs.length));
    },
  };
}

function panel(key, rowView, keyOf) {
  const list = h('ul');
  const place = keyed(list, keyOf, rowView);
  const sub = h('span', { class: 'sub end' });
  const none = h('p', { class: 'none' });
  const node = h('section', { class: 'panel', testid: key }, h('header', {}, h('h2', {}, t(key)), sub), list, none);
  return {
    node,
    update(items, text, isUnset = false) {
      setText(sub, isUnset ? '' : text);
      place(items.slice(0, MOST));
      setText(none, t(isUnset ? 'not.set' : 'all.well'));
      show(none, items.length === 0);
    },
  };
}

function poolRow() {
  const [name, fill, busy, queued] = [h('span', { class: 'mono name' }), h('i'), h('span', { class: 'number' }), h('span', { class: 'number count' })];
  const node = h('li', {}, name, h('span', { class: 'meter' }, fill), busy, queued);
  return {
    node,
    update(pool) {
      setText(name, pool.label);
      fill.style.width = `${Math.min(pool.busy / pool.size, 1) * 100}%`;
      setText(busy, `${number(pool.busy)} / ${number(pool.size)}`);
      setText(queued, number(pool.queued));
      node.classList.toggle('is-full', pool.busy >= pool.size);
      queued.classList.toggle('is-amber', pool.queued > 0);
    },
  };
}

function breakerRow() {
  const [name, shares, state] = [h('span', { class: 'mono name' }), h('span', { class: 'faint grow' }), h('b')];
  return {
    node: h('li', {}, name, shares, state),
    update(breaker) {
      setText(name, breaker.name);
      setText(shares, t('breaker.shares', { failed: percent(breaker.failed), slow: percent(breaker.slow) }));
      setText(state, t(`breaker.${breaker.state}`));
      setAttribute(state, 'class', breaker.state === 'open' ? 'is-red' : 'is-amber');
    },
  };
}

function limiterRow() {
  const [name, count] = [h('span', { class: 'name grow' }), h('span', { class: 'number count' })];
  return {
    node: h('li', {}, name, count),
    update(limit) {
      setText(name, limit.name || t('limiters.waiting'));
      setText(count, number(limit.waiting ?? limit.count));
      count.classList.toggle('is-amber', limit.waiting > 0);
    },
  };
}

function readerRow() {
  const [run, events, seconds] = [h('a', { class: 'mono name' }), h('span', { class: 'number grow' }), h('span', { class: 'number count is-amber' })];
  return {
    node: h('li', {}, run, events, seconds),
    update(reader) {
      setText(run, reader.run_id.slice(0, 8));
      setAttribute(run, 'href', `#/run/${encodeURIComponent(reader.run_id)}`);
      setText(events, t('readers.events', { count: number(reader.events) }));
      setText(seconds, brief(reader.seconds * 1000));
    },
  };
}

function attentionRow() {
  const [what, name, state] = [h('span', { class: 'faint what' }), h('span', { class: 'mono grow' }), h('b')];
  return {
    node: h('li', {}, what, name, state),
    update(one) {
      setText(what, t(`attention.${one.what}`));
      setText(name, one.name);
      setText(state, one.text);
      setAttribute(state, 'class', one.isRed ? 'is-red' : 'is-amber');
    },
  };
}

function needing(pools, open, waiting, readers) {
  return [
    ...open.map(({ name, state }) => ({ what: 'breaker', name, text: t(`breaker.${state}`), isRed: state === 'open' })),
    ...pools.filter((pool) => pool.queued > 0).map((pool) => ({ what: 'pool', name: pool.label, text: t('attention.queued', { count: number(pool.queued) }) })),
    ...(waiting > 0 ? [{ what: 'limiter', name: '', text: t('attention.waiting', { count: number(waiting) }) }] : []),
    ...readers.map((reader) => ({ what: 'reader', name: reader.run_id.slice(0, 8), text: t('attention.behind', { span: brief(reader.seconds * 1000) }) })),
  ];
}
