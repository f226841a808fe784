/** The four charts: runs that ended, how long they took, when their text began, and tokens. */

import { h } from '../shared/dom.js';
import { chartView } from './chart.js';
import { brief, short } from './numbers.js';
import { t } from './texts.js';

const QUANTILES = [
  { name: 'p50', colour: 'ink-3', width: 1.25 },
  { name: 'p95', colour: 'accent', width: 1.75 },
  { name: 'p99', colour: 'accent', width: 1.25, dash: [3, 3] },
];
const total = (values) => (values.some((value) => value === null) ? '' : short(values.reduce((sum, value) => sum + value, 0)));

export function chartsView() {
  const charts = {
    ended: chartView({
      title: t('ended'),
      sub: t('per.second'),
      curves: [{ name: t('curve.ok'), colour: 'ok', area: 0.1 }, { name: t('curve.failed'), colour: 'failed', area: 0.1 }],
      format: short,
      headline: total,
      testid: 'chart-ended',
    }),
    duration: chartView({ title: t('duration'), sub: t('without.waiting'), curves: QUANTILES, format: brief, least: 100, reserve: 84, testid: 'chart-duration' }),
    first: chartView({ title: t('first'), curves: QUANTILES, format: brief, least: 100, reserve: 84, testid: 'chart-first' }),
    tokens: chartView({
      title: t('tokens'),
      sub: t('per.second'),
      curves: [{ name: t('curve.in'), colour: 'accent', area: 0.1 }, { name: t('curve.out'), colour: 'tools' }],
      format: short,
      headline: total,
      testid: 'chart-tokens',
    }),
  };
  return {
    node: h('div', { class: 'row-of-four' }, ...Object.values(charts).map((chart) => chart.node)),
    /** @param {object} curves Of the window, with `holes`, `now` and `window`. */
    update(curves) {
      for (const [name, chart] of Object.entries(charts)) chart.update({ ...curves, values: curves[name] });
    },
  };
}
