/** The runs in flight, the longest first. Of many, only those that are to be seen are in the page. */

import { h, keyed, setAttribute, setText, show } from '../shared/dom.js';
import { elapsed, number } from '../shared/i18n.js';
import { stateOf } from './fleet.js';
import { Order } from './order.js';
import { STATES } from './series.js';
import { t } from './texts.js';

const ROW = 36; // px
const FEW = 60; // rows that are all in the page
const SPARE = 8; // rows above and below those that are to be seen

/**
 * @param {{open: (runId: string) => void, choose: (state: string | null) => void}} page
 * @param {{hasFilter: boolean}} options
 */
export function listView(page, { hasFilter }) {
  const order = new Order();
  const seen = new Map(); // rows as they were last, for those that are gone and still held
  let last = null;
  let chosenRun = null;
  let filterText = '';
  const field = h('input', { type: 'search', class: 'field filter', placeholder: t('list.filter'), 'aria-label': t('list.filter'), testid: 'filter', on: { input: () => filter(field.value) } });
  const states = ['', ...STATES].map((state) => h('option', { value: state }, state ? t(`state.${state}`) : t('list.all')));
  const select = h('select', { class: 'picker', 'aria-label': t('list.state'), on: { change: () => page.choose(select.value || null) } }, ...states);
  const count = h('span', { class: 'number sub' });
  const [above, below] = [h('tbody', { 'aria-hidden': 'true' }, h('tr')), h('tbody', { 'aria-hidden': 'true' }, h('tr'))];
  const body = h('tbody', { on: { click: (event) => openAt(event.target), focusin: (event) => choose(event.target) } });
  const place = keyed(body, (item) => item.row.run_id, rowView);
  const heads = ['run', 'list.state', 'run.last', 'run.elapsed'].map((key) =>
    h('th', { scope: 'col', class: key === 'run.last' ? 'wide' : '', 'aria-sort': key === 'run.elapsed' ? 'descending' : null }, t(key)),
  );
  const table = h('table', { class: 'rows runs', testid: 'runs', 'aria-label': t('list') }, h('thead', {}, h('tr', {}, ...heads)), above, body, below);
  const none = h('p', { class: 'none', hidden: true }, t('list.none'));
  const box = h('div', { class: 'scroller', on: { scroll: () => last && draw(), keydown } }, table, none);
  const node = h('section', { class: 'panel list' }, h('header', {}, h('h2', {}, t('list')), hasFilter && field, count, select), box);
  let ids = [];
  return { node, update, move, openChosen, focusFilter: () => field.focus() };

  /** @param {{fleet: object, now: number, chosen: string | null}} told */
  function update(told) {
    last = told;
    const { fleet, now, chosen } = told;
    for (const id of seen.keys()) if (!fleet.runs.has(id) && !fleet.leaving.has(id) && !ids.includes(id)) seen.delete(id);
    const fits = (row) => (chosen === null || stateOf(row) === chosen) && (!filterText || textOf(row).includes(filterText));
    const rows = [...fleet.leaving.values(), ...fleet.runs.values()].filter(fits);
    for (const row of rows) seen.set(row.run_id, row);
    rows.sort((one, other) => (one.began < other.began ? -1 : one.began > other.began ? 1 : 0));
    const held = body.matches(':hover') || body.contains(document.activeElement);
    ids = order.take(rows.map((row) => row.run_id), performance.now(), held);
    setText(count, number(chosen === null && !filterText ? fleet.runs.size : rows.length));
    if (select.value !== (chosen ?? '')) select.value = chosen ?? '';
    show(none, ids.length === 0);
    show(table, ids.length > 0);
    draw(now);
  }

  function draw(now = last.now) {
    const isLong = ids.length > FEW;
    const top = isLong ? Math.max(Math.floor(box.scrollTop / ROW) - SPARE, 0) : 0;
    const shown = isLong ? Math.ceil((box.clientHeight || 480) / ROW) + 2 * SPARE : ids.length;
    const items = ids.slice(top, top + shown).map((id, at) => ({ row: seen.get(id), at: top + at, now, isChosen: id === chosenRun }));
    const focused = chosenRun !== null && body.contains(document.activeElement);
    setAttribute(table, 'aria-rowcount', ids.length + 1);
    above.firstChild.style.height = `${top * ROW}px`;
    below.firstChild.style.height = `${Math.max(ids.length - top - shown, 0) * ROW}px`;
    place(items.filter((item) => item.row));
    if (focused && !body.contains(document.activeElement)) body.querySelector('[aria-current]')?.focus({ preventScroll: true });
  }

  function filter(text) {
    filterText = text.trim().toLowerCase();
    order.renew();
    if (last) update(last);
  }

  /** Choose the next row, or the one before. @param {1 | -1} by */
  function move(by) {
    if (ids.length === 0) return;
    const at = Math.min(Math.max(ids.indexOf(chosenRun) + by, 0), ids.length - 1);
    chosenRun = ids[at];
    if (ids.length > FEW && (at * ROW < box.scrollTop || (at + 2) * ROW > box.scrollTop + box.clientHeight)) box.scrollTop = Math.max((at - 3) * ROW, 0);
    draw();
    body.querySelector('[aria-current]')?.focus();
  }

  function openChosen() {
    if (chosenRun !== null) page.open(chosenRun);
  }

  function keydown(event) {
    if (event.key !== 'Enter' || !body.contains(event.target)) return;
    event.preventDefault();
    openAt(event.target);
  }

  function openAt(target) {
    const id = target.closest('tr')?.dataset.run;
    if (id) page.open(id);
  }

  function choose(target) {
    chosenRun = target.closest('tr')?.dataset.run ?? chosenRun;
  }
}

const textOf = (row) => [row.run_id, row.agent, row.user_id ?? '', row.model, row.session_id].join(' ').toLowerCase();

function rowView() {
  const [id, agent, word, last, time] = [h('span', { class: 'mono' }), h('span', { class: 'faint' }), h('span'), h('td', { class: 'mono wide faint' }), h('td', { class: 'number' })];
  const mark = h('span', { class: 'mark' });
  const state = h('td', { class: 'row-state' }, h('i'), word, mark);
  const node = h('tr', { tabindex: '-1', testid: 'run' }, h('th', { scope: 'row' }, id, ' ', agent), state, last, time);
  return {
    node,
    update({ row, at, now, isChosen }) {
      const shown = row.outcome ?? stateOf(row);
      setText(id, row.run_id.slice(0, 8));
      setText(agent, row.agent);
      setText(word, t(`state.${shown}`));
      setText(mark, row.marks.join(', '));
      setText(last, row.last);
      setText(time, elapsed((row.outcome ? row.until - 2000 : now) - Date.parse(row.began)));
      setAttribute(state, 'data-state', shown);
      setAttribute(node, 'data-run', row.run_id);
      setAttribute(node, 'aria-rowindex', at + 2);
      setAttribute(node, 'tabindex', isChosen || at === 0 ? '0' : '-1');
      setAttribute(node, 'aria-current', isChosen ? 'true' : null);
    },
  };
}
