/** A chart of curves over time: drawn on a canvas by uPlot, with its last values as its name, and as a table if wanted. */

import { drawing, h, setAttribute, setText, show } from '../shared/dom.js';
import { TABLE } from './icons.js';
import { hatch, labels } from './marks.js';
import { Ceiling, grid } from './numbers.js';
import { WINDOWS } from './series.js';
import { t } from './texts.js';
import uPlot from '../vendor/uplot.js';

const FONT = '11px';
const SMALLEST = 120; // px of width below which nothing is drawn
const TIMES = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit' });
const CLOCK = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });

/** "14:09:26" for ms since 1970. @param {number} ms */
export const clock = (ms) => CLOCK.format(ms);

/** The value of a token now. @param {string} name */
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/**
 * @typedef {{name: string, colour: string, width?: number, dash?: number[], area?: number}} Curve
 * @param {object} what
 * @param {string} what.title
 * @param {string} [what.sub]
 * @param {Curve[]} what.curves
 * @param {(value: number) => string} what.format
 * @param {(values: (number | null)[]) => string} [what.headline] What stands at the right of the title.
 * @param {boolean} [what.stacked] Each curve stands upon the one before.
 * @param {number} [what.height] px
 * @param {number} [what.least] The lowest top of the axis.
 * @param {number} [what.reserve] px at the right for the labels of the ends; none are there where it is 0.
 * @param {string} what.testid
 */
export function chartView(what) {
  const { title, sub, curves, format, headline, stacked = false, height = 150, least = 1, reserve = 72, testid } = what;
  const ceiling = new Ceiling();
  const place = h('div', { class: 'plot', role: 'img' });
  const table = h('table', { class: 'numbers' });
  const sheet = h('div', { class: 'sheet', hidden: true, tabindex: '0', role: 'region', 'aria-label': title }, table);
  const value = h('b', { class: 'headline' });
  const turn = h('button', { type: 'button', class: 'bare small', 'aria-label': t('as.table'), title: t('as.table'), on: { click: toggle } }, drawing(TABLE));
  const head = h('header', {}, h('h2', {}, title), sub && h('span', { class: 'sub' }, sub), h('span', { class: 'grow' }), turn, value);
  const node = h('section', { class: 'panel chart', testid }, head, place, sheet);
  let plot = null;
  let shown = null; // what is drawn
  let theme = null;
  new ResizeObserver(fit).observe(place);
  return { node, update };

  /** @param {{times: number[], values: (number | null)[][], holes: [number, number][], now: number, window: string}} told */
  function update(told) {
    shown = told;
    const sums = stacked ? stack(told.values) : told.values;
    const most = Math.max(least, ...sums.flat().filter((one) => one !== null));
    shown.top = ceiling.take(most, told.now, WINDOWS[told.window][0]);
    shown.data = [told.times, ...sums];
    const last = told.values.map((curve) => curve.findLast((one) => one !== null) ?? null);
    setText(value, headline ? headline(last) : '');
    setAttribute(place, 'aria-label', `${title}${sub ? ` ${sub}` : ''}: ${curves.map(({ name }, at) => `${name} ${last[at] === null ? '–' : format(last[at])}`).join(', ')}`);
    if (!sheet.hidden) fillTable();
    else draw();
  }

  function draw() {
    const now = `${document.documentElement.dataset.theme}${matchMedia('(prefers-color-scheme: dark)').matches}`;
    if (plot === null || theme !== now) {
      theme = now;
      make();
    } else plot.setData(shown.data);
  }

  function fit() {
    if (plot !== null && place.clientWidth > SMALLEST) plot.setSize({ width: place.clientWidth, height });
    else if (shown !== null && sheet.hidden) make();
  }

  function make() {
    plot?.destroy();
    plot = null;
    if (place.clientWidth <= SMALLEST) return;
    plot = new uPlot(options(), shown.data, place);
  }

  function options() {
    const [ink, line, family] = [token('ink-3'), token('line'), getComputedStyle(document.body).fontFamily];
    const font = `${FONT} ${family}`;
    const colours = curves.map(({ colour }) => token(colour));
    const pieces = curves.map(({ width = 1.5, dash, area }, at) => ({
      stroke: colours[at],
      width,
      dash,
      fill: area && (!stacked || at === 0) ? tinted(colours[at], area) : undefined,
      points: { show: true, size: 3, width: 0, fill: colours[at], filter: alone },
    }));
    const bands = stacked ? curves.slice(1).map(({ area }, at) => ({ series: [at + 2, at + 1], fill: tinted(colours[at + 1], area) })) : [];
    const axis = { stroke: ink, font, ticks: { show: false }, gap: 4 };
    return {
      width: place.clientWidth,
      height,
      padding: [10, reserve || 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false }, sync: { key: 'dashboard' } },
      scales: { x: { range: () => [(shown.now - WINDOWS[shown.window][0]) / 1000, shown.now / 1000] }, y: { range: () => [0, shown.top] } },
      axes: [
        { ...axis, size: 22, space: 56, incrs: [60, 300, 600, 900, 1800], grid: { show: false }, values: (_, splits) => splits.map((one) => TIMES.format(one * 1000)) },
        { ...axis, size: 52, grid: { stroke: line, width: 1 }, splits: () => grid(shown.top), values: (_, splits) => splits.map((one) => (one === 0 ? '0' : format(one))) },
      ],
      series: [{}, ...pieces],
      bands,
      hooks: {
        drawAxes: [(one) => shown.holes.forEach((hole) => hatch(one, hole, token('line-strong')))],
        draw: [(one) => reserve && labels(one, { curves, values: shown.values, sums: shown.data.slice(1), colours, format, font, ink: token('ink-2'), clock })],
        setCursor: [(one) => one.redraw(false, false)],
      },
    };
  }

  function toggle() {
    show(sheet, sheet.hidden);
    show(place, sheet.hidden);
    const name = t(sheet.hidden ? 'as.table' : 'as.chart');
    setAttribute(turn, 'aria-label', name);
    setAttribute(turn, 'title', name);
    if (!sheet.hidden) fillTable();
    else make();
  }

  function fillTable() {
    const cell = (tag, text) => h(tag, tag === 'th' ? { scope: 'col' } : {}, text);
    const rows = shown.times.map((time, at) => h('tr', {}, h('th', { scope: 'row' }, clock(time * 1000)), ...shown.values.map((curve) => cell('td', curve[at] === null ? '' : format(curve[at])))));
    table.replaceChildren(
      h('caption', { class: 'unseen' }, title),
      h('thead', {}, h('tr', {}, cell('th', t('time')), ...curves.map(({ name }) => cell('th', name)))),
      h('tbody', {}, ...rows.reverse()),
    );
  }
}

/** Curves of which each stands upon the one before. Where one is not known, none is. */
function stack(values) {
  return values.map((curve, at) =>
    curve.map((value, point) => (value === null ? null : values.slice(0, at + 1).reduce((sum, one) => sum + one[point], 0))),
  );
}

/** Points with nothing beside them, which no line shows. */
function alone(plot, series) {
  const values = plot.data[series];
  const found = [];
  values.forEach((value, at) => {
    if (value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null) found.push(at);
  });
  return found;
}

function tinted(colour, area) {
  return `${colour}${Math.round(area * 255).toString(16).padStart(2, '0')}`;
}
