/** Runs in flight: their number, a band by state, and the same over time. A state that is chosen filters the lists. */

import { h, setAttribute, setText } from '../shared/dom.js';
import { number } from '../shared/i18n.js';
import { chartView, clock } from './chart.js';
import { brief, short } from './numbers.js';
import { STATES } from './series.js';
import { t } from './texts.js';

const COLOURS = { thinking: 'thinking', awaiting_model: 'accent', executing_tools: 'tools', suspended: 'waiting-fill', queued: 'off' };

/** @param {{choose: (state: string | null) => void}} page */
export function flyingView(page) {
  const count = h('span', { class: 'main-number', testid: 'in-flight' });
  const sub = h('span', { class: 'sub' });
  const segments = STATES.map((state) => h('i', { 'data-state': state }));
  const band = h('div', { class: 'band', 'aria-hidden': 'true' }, ...segments);
  const numbers = STATES.map((state) => h('b', { testid: `state-${state}` }));
  const buttons = STATES.map((state, at) =>
    h('button', { type: 'button', class: 'state', 'data-state': state, 'aria-pressed': 'false', on: { click: () => page.choose(state) } }, h('i'), t(`state.${state}`), numbers[at]),
  );
  const chart = chartView({
    title: t('flying'),
    curves: STATES.map((state) => ({ name: t(`state.${state}`), colour: COLOURS[state], area: 0.2, width: 1.25 })),
    format: short,
    stacked: true,
    height: 132,
    reserve: 0,
    testid: 'chart-flying',
  });
  const facts = h('div', { class: 'flying-facts' }, h('h2', {}, t('flying')), h('p', {}, count, sub), band, h('div', { class: 'states' }, ...buttons));
  const node = h('section', { class: 'panel flying' }, facts, chart.node);
  return { node, update };

  function update({ fleet, now, chosen, curves, stale }) {
    const counts = fleet.counts();
    setText(count, number(fleet.runs.size));
    count.classList.toggle('is-stale', stale);
    const unseen = fleet.unseen > 0 ? ` · ${t('flying.unseen', { count: number(fleet.unseen) })}` : '';
    setText(sub, subline(fleet, now, curves, stale) + unseen);
    STATES.forEach((state, at) => {
      setText(numbers[at], number(counts[at]));
      segments[at].style.flexGrow = counts[at];
      segments[at].hidden = counts[at] === 0;
      setAttribute(buttons[at], 'aria-pressed', String(chosen === state));
    });
    chart.update({ ...curves, values: curves.flying });
  }
}

function subline(fleet, now, { times, flying }, stale) {
  if (stale) return t('flying.at', { time: clock(now) });
  const [oldest] = fleet.runs.values();
  if (oldest === undefined) return '';
  const span = brief(Math.max(now - Date.parse(oldest.began), 0));
  const at = times.findLastIndex((time) => time * 1000 <= now - 60_000);
  if (at < 0 || flying[0][at] === null) return t('flying.oldest', { span });
  return t('flying.before', { count: number(flying.reduce((sum, curve) => sum + curve[at], 0)), span });
}
