/** The dashboard: it keeps what all runs add up to, and paints it once a second. */

import { hear, now as serverNow } from '../shared/clock.js';
import { copy } from '../shared/clipboard.js';
import { drawing, h, show } from '../shared/dom.js';
import { COPY } from '../shared/icons.js';
import { askForKey } from '../shared/key.js';
import { lasting } from '../shared/storage.js';
import { chartsView } from './charts.js';
import { feed, health as askHealth, snapshot } from './feed.js';
import { Fleet } from './fleet.js';
import { flyingView } from './flying.js';
import { healthView } from './health.js';
import { ARROW_DASHED } from './icons.js';
import { keysView, listenForKeys } from './keys.js';
import { listView } from './list.js';
import { runView } from './run.js';
import { WINDOWS } from './series.js';
import { t } from './texts.js';
import { toolsView } from './tools.js';
import { stripsView, topView } from './top.js';

const TICK = 1000; // ms between two paintings
const NEAR = 60_000; // ms between two gaps that are told as one
const HEALTH = 5000; // ms between two questions for what no event tells
const SAID_ABOVE = new Set(['slow_tap', 'loop_lag', 'store_lag']); // warnings that concern the whole process

const fleet = new Fleet();
const wake = new EventTarget();
const chosenWindow = lasting.get('window');
const now = {
  window: chosenWindow in WINDOWS ? chosenWindow : '15m',
  chosen: null, // the state by which runs are filtered
  pausedAt: null,
  lost: null,
  lostAt: 0,
  missedFrom: null, // until a snapshot has come
  strips: [],
  health: null,
  isReady: false,
};

const page = {
  choose(state) {
    now.chosen = now.chosen === state ? null : state;
    paint();
  },
  open: (runId) => (location.hash = `#/run/${encodeURIComponent(runId)}`),
  turnPause() {
    now.pausedAt = now.pausedAt === null ? serverNow() : null;
    paint();
  },
  setWindow(name) {
    now.window = name;
    lasting.set('window', name);
    paint(true);
  },
  tryNow: () => wake.dispatchEvent(new Event('wake')),
  dismiss(strip) {
    now.strips = now.strips.filter((one) => one !== strip);
    paint();
  },
  showKeys: () => keys.turn(),
  redraw: () => paint(true),
  leaveRun: () => (location.hash = '#/'),
};

const top = topView(page);
const strips = stripsView(page);
const flying = flyingView(page);
const charts = chartsView();
const health = healthView();
const tools = toolsView();
const briefList = listView(page, { hasFilter: false });
const longList = listView(page, { hasFilter: true });
const run = runView(page);
const keys = keysView();
const none = noneView();
const gate = h('div', { class: 'gate' });
const overview = h('div', { class: 'overview', testid: 'overview' }, flying.node, charts.node, health.node, h('div', { class: 'row-of-two' }, tools.node, briefList.node));
const runs = h('div', { class: 'all-runs' }, longList.node);
const main = h('main', {}, gate, none, overview, runs, run.node);

function noneView() {
  const command = `curl ${new URL('../../api/agent/chat', import.meta.url)} --json '{"message":"hi"}'`;
  const button = h('button', { type: 'button', class: 'bare', 'aria-label': t('copy'), on: { click: () => copy(command, button) } }, drawing(COPY));
  return h('div', { class: 'nothing', hidden: true, testid: 'no-runs' }, drawing(ARROW_DASHED), h('h1', {}, t('none')), h('p', {}, t('none.text')), h('p', { class: 'command mono' }, h('code', {}, command), button));
}

const placeNow = () => (location.hash.startsWith('#/run') ? location.hash : '#/');

// -- painting ----------------------------------------------------------------------------------------------------

/** Show what is known now, if anybody sees it. @param {boolean} [anyway] Also what a pause holds. */
function paint(anyway = false) {
  if (document.hidden) return;
  const place = placeNow();
  const at = now.pausedAt ?? serverNow();
  top.update({ ...now, place, fleet, now: serverNow() });
  strips.update({ ...now, asOf: now.lostAt });
  const isEmpty = now.isReady && fleet.totals.runs === 0;
  const isRun = place.startsWith('#/run/');
  show(gate, !now.isReady);
  show(none, isEmpty && !isRun);
  show(overview, now.isReady && !isEmpty && place === '#/');
  show(runs, now.isReady && !isEmpty && place === '#/runs');
  show(run.node, now.isReady && isRun);
  if (!now.isReady || isEmpty || isRun || (now.pausedAt !== null && !anyway)) return;
  if (place === '#/runs') longList.update({ fleet, now: at, chosen: now.chosen });
  else paintOverview(at);
}

function paintOverview(at) {
  const isLost = now.lost !== null;
  const known = isLost ? now.lostAt : at;
  const holes = [...fleet.series.holes(at, now.window), ...(isLost ? [[known, at]] : [])];
  const curves = { ...fleet.series.curves(at, now.window), holes, now: at, window: now.window };
  main.classList.toggle('is-stale', isLost);
  flying.update({ fleet, now: known, chosen: now.chosen, curves, stale: isLost });
  charts.update(curves);
  health.update(now.health);
  tools.update({ fleet, now: at, window: now.window });
  briefList.update({ fleet, now: known, chosen: now.chosen });
}

function tick() {
  if (now.isReady && now.lost === null) fleet.sample(serverNow());
  paint();
}

/** From when on events are missing. */
function missing() {
  now.missedFrom ??= Math.max(fleet.last ?? 0, now.lostAt) || serverNow();
  return now.missedFrom;
}

// -- what the server tells -----------------------------------------------------------------------------------------

const hears = {
  load(told) {
    hear(Date.parse(told.at));
    fleet.load(told);
    now.health = told;
    if (now.missedFrom !== null) {
      const to = Date.parse(told.at);
      fleet.series.hole(now.missedFrom, to);
      for (const strip of now.strips) if (strip.isMended === false) Object.assign(strip, { isMended: true, to });
      now.missedFrom = null;
    }
    if (!now.isReady) {
      now.isReady = true;
      arrive();
    }
  },
  event(event) {
    fleet.take(event);
    fleet.delay = Math.max(serverNow() - Date.parse(event.ts), 0);
    if (event.type === 'warning' && SAID_ABOVE.has(event.code)) {
      const { code, message } = event;
      now.strips = [...now.strips.filter((one) => one.code !== code), { kind: 'warning', code, message }];
    }
  },
  gap({ missed }) {
    const from = missing();
    const near = now.strips.find((one) => one.kind === 'gap' && from - one.to < NEAR);
    if (near) Object.assign(near, { missed: near.missed + missed, isMended: false });
    else now.strips = [...now.strips, { kind: 'gap', missed, from, to: serverNow(), isMended: false }];
  },
  restarted() {
    now.strips = [...now.strips.filter((one) => one.kind !== 'restart'), { kind: 'restart', from: missing() }];
  },
  lost(lost) {
    if (lost !== null && now.lost === null) now.lostAt = serverNow();
    now.lost = lost;
    paint();
  },
};

async function listenForHealth() {
  if (document.hidden || now.lost !== null || !now.isReady) return;
  try {
    now.health = await askHealth();
    const isTold = now.strips.some((one) => one.kind === 'draining');
    if (now.health.draining && !isTold) now.strips = [...now.strips, { kind: 'draining' }];
  } catch {
    // The stream of events tells of a break, and asks for a key.
  }
}

/** Show the page that the address names. */
function arrive() {
  const place = placeNow();
  const id = place.startsWith('#/run/') ? decodeURIComponent(place.slice('#/run/'.length)) : null;
  run.show(id);
  document.title = `${id === null ? t(place === '#/runs' ? 'runs' : 'overview') : id.slice(0, 8)} · agentflow`;
  paint(true);
}

async function start() {
  for (;;) {
    try {
      await askForKey(gate, snapshot, [t('operator'), t('operator.why')]);
      gate.replaceChildren();
      await feed(hears, wake);
    } catch (error) {
      now.isReady = false;
      if (error.status !== 401 && error.status !== 403) {
        gate.replaceChildren(h('p', { class: 'page-fault', role: 'alert' }, t('refused', { why: error.message })));
        paint();
        throw error;
      }
    }
  }
}

const list = () => (placeNow() === '#/runs' ? longList : briefList);
const inRun = () => placeNow().startsWith('#/run/');
listenForKeys({
  ...page,
  filter() {
    if (inRun()) return;
    location.hash = '#/runs';
    requestAnimationFrame(() => longList.focusFilter());
  },
  move: (by) => (inRun() ? run.move(by) : list().move(by)),
  fold: (isFolded) => inRun() && run.fold(isFolded),
  enter: () => !inRun() && list().openChosen(),
  nextFailure: () => inRun() && run.nextFailure(),
  back(target) {
    if (keys.close() || top.closeMenu() || run.closeDialog()) return;
    if (target.matches?.('input')) target.blur();
    else if (inRun()) page.leaveRun();
  },
});
document.body.replaceChildren(top.node, strips.node, main, keys.node);
window.addEventListener('hashchange', arrive);
document.addEventListener('visibilitychange', () => paint(true));
setInterval(tick, TICK);
setInterval(listenForHealth, HEALTH);
paint();
start();
