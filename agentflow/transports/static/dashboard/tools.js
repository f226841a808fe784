/** The table of tools in a window: how often, how long, and what share of the calls has failed. */

import { h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { number } from '../shared/i18n.js';
import { spark } from './marks.js';
import { brief, percent, short } from './numbers.js';
import { Order } from './order.js';
import { t } from './texts.js';

const SVG = 'http://www.w3.org/2000/svg';
const BAD = 0.05; // of the calls: from there on the share is red
const FULL = 0.25; // the share at which the bar is full

/** Each column: its text, by what it sorts, and whether it is left out on a phone. */
const COLUMNS = [
  { key: 'tool', by: (row) => row.tool, wide: false },
  { key: 'tool.rate', by: (row) => -row.perMinute, wide: true },
  { key: 'tool.flying', by: (row) => -row.flying, wide: true },
  { key: 'p50', by: (row) => -(row.p50 ?? -1), wide: true },
  { key: 'p95', by: (row) => -(row.p95 ?? -1), wide: false },
  { key: 'tool.retries', by: (row) => -row.retries, wide: true },
  { key: 'tool.failed', by: (row) => -row.share, wide: false },
  { key: 'tool.worst', by: null, wide: true },
];
const titleOf = (key) => (key.startsWith('p') ? key : t(key));

export function toolsView() {
  const order = new Order();
  let sorted = COLUMNS[6];
  let last = null;
  const heads = COLUMNS.map((column) =>
    h('th', { scope: 'col', class: column.wide ? 'wide' : '' }, column.by ? h('button', { type: 'button', class: 'sorter', on: { click: () => sort(column) } }, titleOf(column.key)) : titleOf(column.key)),
  );
  heads.splice(2, 0, h('td', { class: 'wide' }));
  const body = h('tbody');
  const place = keyed(body, (row) => row.tool, rowView);
  const sub = h('span', { class: 'sub' });
  const none = h('p', { class: 'none' }, t('tools.none'));
  const table = h('table', { class: 'rows tools', testid: 'tools' }, h('caption', { class: 'unseen' }, t('tools')), h('thead', {}, h('tr', {}, ...heads)), body);
  const node = h('section', { class: 'panel' }, h('header', {}, h('h2', {}, t('tools')), sub), table, none);
  return { node, update };

  function sort(column) {
    sorted = column;
    order.renew();
    if (last) update(last);
  }

  function update(told) {
    last = told;
    const { fleet, now, window } = told;
    const running = fleet.running();
    const rows = new Map(fleet.series.tools(now, window).map((row) => [row.tool, { ...row, flying: running.get(row.tool) ?? 0 }]));
    for (const [tool, flying] of running) {
      if (!rows.has(tool)) rows.set(tool, { tool, perMinute: 0, curve: [], calls: 0, retries: 0, p50: null, p95: null, failed: 0, share: 0, worst: null, flying });
    }
    const wanted = [...rows.values()].sort((one, other) => compare(sorted.by(one), sorted.by(other)) || -compare(one.calls, other.calls)).map((row) => row.tool);
    const held = body.matches(':hover') || body.contains(document.activeElement);
    place(order.take(wanted, performance.now(), held).map((tool) => rows.get(tool)).filter(Boolean));
    COLUMNS.forEach((column, at) => setAttribute(heads[at + (at > 1 ? 1 : 0)], 'aria-sort', column === sorted ? (column.key === 'tool' ? 'ascending' : 'descending') : null));
    setText(sub, t(`tools.window.${window}`));
    show(none, rows.size === 0);
    show(table, rows.size > 0);
  }
}

const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

function rowView() {
  const cells = Array.from({ length: 7 }, () => h('td', { class: 'number wide' }));
  const [rate, flying, p50, p95, retries] = cells;
  p95.classList.remove('wide');
  const name = h('th', { scope: 'row', class: 'mono' });
  const path = document.createElementNS(SVG, 'path');
  const svg = document.createElementNS(SVG, 'svg');
  setAttribute(svg, 'class', 'spark');
  setAttribute(svg, 'viewBox', '0 0 64 16');
  setAttribute(svg, 'aria-hidden', 'true');
  svg.append(path);
  const fill = h('i');
  const share = h('span');
  const failed = h('td', { class: 'share' }, h('span', { class: 'meter' }, fill), share);
  const worst = h('td', { class: 'mono wide faint' });
  const node = h('tr', { testid: 'tool' }, name, rate, h('td', { class: 'wide' }, svg), flying, p50, p95, retries, failed, worst);
  return {
    node,
    update(row) {
      setText(name, row.tool);
      setText(rate, short(row.perMinute));
      spark(path, row.curve);
      setText(flying, number(row.flying));
      setText(p50, row.p50 === null ? '' : brief(row.p50));
      setText(p95, row.p95 === null ? '' : brief(row.p95));
      setText(retries, number(row.retries));
      setText(share, percent(row.share));
      fill.style.width = `${Math.min(row.share / FULL, 1) * 100}%`;
      failed.classList.toggle('is-bad', row.share > BAD);
      setText(worst, row.worst === null ? '' : `${row.worst.status} ${Math.round(row.worst.share * 100)}%`);
      setAttribute(node, 'data-tool', row.tool);
      setAttribute(node, 'data-calls', row.calls);
      setAttribute(node, 'data-failed', row.failed);
    },
  };
}
