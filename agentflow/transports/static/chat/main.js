/** The chat page: what is shown now, and what each of its parts may do. All state is in the conversations and here. */

import { announcer } from '../shared/announce.js';
import * as api from '../shared/api.js';
import { copy } from '../shared/clipboard.js';
import { drawing, h, setText, show } from '../shared/dom.js';
import { t } from '../shared/i18n.js';
import { MORE, PANEL, EDIT } from '../shared/icons.js';
import { askForKey } from '../shared/key.js';
import { lasting } from '../shared/storage.js';
import { composerView } from './composer.js';
import { Conversation } from './conversation.js';
import { emptyView } from './empty.js';
import { listenForKeys } from './keys.js';
import { menuView } from './menu.js';
import { sidebarView } from './sidebar.js';
import { speaker } from './speaker.js';
import { textOf, waiting } from './state.js';
import { statusView } from './status.js';
import { threadView } from './thread.js';

const TICK = 200; // ms after which what has elapsed is told anew

const conversations = new Map(); // those that were opened, by session
const chosen = { agent: null, model: null };
let offers = { agents: [], models: {}, user: null };
let sessions = [];
let current = null;
let editing = false;
let scheduled = false;
let shownTitle = null;

/** What the parts of the page may do. */
const page = {
  get user() {
    return offers.user;
  },
  submit,
  stop: () => current.stop(),
  choose(name, value) {
    chosen[name] = value || null;
    schedule();
  },
  takeBack: (key) => composer.write(current.takeBack(key)),
  edit(text) {
    editing = true;
    composer.write(text);
    schedule();
  },
  editLast() {
    const text = current.last?.run.input;
    if (!text) return false;
    page.edit(text);
    return true;
  },
  endEditing() {
    editing = false;
    composer.write('');
    schedule();
  },
  retry: (turn) => send(turn.run.input),
  goOn: () => send(t('continue.said')),
  sendAgain: (turn) => current.sendAgain(turn),
  reload: (turn) => current.reload(turn),
  loadEarlier: () => guarded(() => current.loadEarlier()),
  copyAnswer: (run, button) => copy(textOf(run), button),
  decide: (verb, body) => current.decide(verb, body),
  isPending: (part) => current.live?.run.pending.includes(part) ?? false,
  isAtEnd: () => thread.isAtEnd(),
  needsYou: () => (current.live?.run.pending.length ?? 0) > 0,
  schemaOf: (tool) => offers.agents.flatMap((agent) => agent.tools).find((one) => one.name === tool)?.parameters,
  tryNow: () => current.tryNow(),
  heard: (part) => speaks.heard(part),
  newChat,
  open: (id) => guarded(() => open(id)),
  forget: () => guarded(forget),
  toEnd: () => thread.toEnd(),
};

const voice = announcer();
const speaks = speaker(voice);
const sidebar = sidebarView(page);
const thread = threadView(page);
const empty = emptyView(page);
const status = statusView(page);
const composer = composerView(page);
const menu = menuView(page);
const title = h('h1', { class: 'title', dir: 'auto' });
const fault = h('p', { class: 'page-fault', role: 'alert', hidden: true });
const main = frame();

function frame() {
  const drawer = h(
    'button',
    {
      type: 'button',
      class: 'bare drawer-open',
      'aria-label': t('sessions.open'),
      on: { click: () => sidebar.shown(true) },
    },
    drawing(PANEL),
  );
  const fresh = h(
    'button',
    { type: 'button', class: 'bare fresh', 'aria-label': t('new'), on: { click: newChat } },
    drawing(EDIT),
  );
  const header = h('header', { class: 'head' }, drawer, title, menu.node, fresh);
  const foot = h('div', { class: 'foot column' }, status.node, composer.node);
  return h('main', {}, header, fault, empty.node, thread.node, foot);
}

// -- showing -----------------------------------------------------------------------------------------------------

/** Draw what is different, once, in the next frame. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}

function draw() {
  const { live, turns } = current;
  const run = live?.run ?? null;
  const blank = turns.length === 0 && current.isNew;
  setText(title, titleOf(current));
  if (shownTitle !== title.textContent) document.title = `${(shownTitle = title.textContent)} · agentflow`;
  empty.update(blank ? agentNow() : null);
  show(thread.node, !blank);
  thread.update(current);
  status.update(current);
  main.classList.toggle('is-lost', current.lost !== null);
  composer.update({
    running: live !== null,
    stopping: current.stopping,
    blocked: run !== null && waiting(run, 'approval').length > 0,
    asked: run !== null && waiting(run, 'question').length > 0,
    offline: current.lost !== null,
    agent: agentNow()?.name ?? '',
    agents: offers.agents.map(({ name }) => [name, name]),
    model: chosen.model,
    models: modelsNow(),
    queue: current.queue,
    editing,
    hasLast: turns.length > 0,
  });
  menu.update(current);
  sidebar.update(listed(), offers.user);
  speaks.attend(live);
}

const agentNow = () => offers.agents.find(({ name }) => name === chosen.agent) ?? offers.agents[0] ?? null;

/** The models to choose from: first what is asked where none is chosen, as far as it is known; then the settings'. */
function modelsNow() {
  const { default: own, allowed = [], aliases = [] } = offers.models;
  const names = [...aliases, ...allowed.filter((name) => !name.includes('*'))];
  const first =
    current.turns.findLast(({ run, body }) => run.asks && !body?.model)?.run.asks ?? own ?? t('model.default');
  return [['', first], ...[...new Set(names)].filter((name) => name !== first).map((name) => [name, name])];
}

function titleOf(conversation) {
  const [first] = conversation.hasEarlier ? [] : conversation.turns;
  const stored = sessions.find((session) => session.session_id === conversation.id)?.title;
  return first?.run.input.slice(0, 200) || stored || t('new');
}

function listed() {
  return sessions.map((session) => {
    const run = conversations.get(session.session_id)?.live?.run;
    const waits = run ? run.pending.length > 0 : session.state === 'suspended';
    const runs = run !== undefined || session.active_run !== null;
    return {
      ...session,
      chosen: session.session_id === current.id,
      word: runs ? (waits ? 'waiting' : 'running') : null,
    };
  });
}

// -- doing -------------------------------------------------------------------------------------------------------

function submit(text) {
  editing = false;
  const question = current.live ? waiting(current.live.run, 'question')[0] : undefined;
  if (question) guarded(() => current.decide('answer', { text, question_id: question.target }));
  else send(text);
}

function send(text) {
  const choice = {};
  if (chosen.model) choice.model = chosen.model;
  if (chosen.agent) choice.agent = chosen.agent;
  current.send(text, choice);
  thread.toEnd();
}

function changed(conversation) {
  const { live } = conversation;
  const runs = live?.run.accepted ? live.run.id : null;
  if (conversation.follows !== runs) {
    conversation.follows = runs;
    listSessions(); // its title, its place and its word are others now
    if (conversation === current) remember();
  }
  const { last } = conversation;
  if (last?.refused?.status === 401 && !last.askedForKey) {
    last.askedForKey = true;
    start();
  }
  schedule();
}

/** Keep which session is open, and which run of it goes on, for when the page is loaded again. */
function remember() {
  lasting.set('session', current.isNew ? null : current.id);
  lasting.set('run', current.follows ?? null);
}

function display(conversation) {
  current = conversation;
  editing = false;
  thread.toEnd();
  remember();
  schedule();
}

function newChat() {
  display(new Conversation(null, changed));
  conversations.set(current.id, current);
  composer.write('');
}

async function open(id, run = null) {
  if (conversations.has(id)) {
    display(conversations.get(id));
    return;
  }
  const conversation = new Conversation(id, changed);
  conversations.set(id, conversation);
  display(conversation);
  try {
    await conversation.load();
  } catch (error) {
    if (!(error instanceof api.Refusal && error.status === 404)) throw error;
    if (run !== null)
      conversation.resume(run); // begun just now, and not yet among the sessions
    else {
      conversations.delete(id);
      newChat();
    }
  }
  thread.toEnd();
}

async function forget() {
  const { id } = current;
  current.leave();
  await api.forgetSession(id);
  conversations.delete(id);
  newChat();
  await listSessions();
}

async function listSessions() {
  await guarded(async () => {
    ({ sessions } = await api.sessions());
    schedule();
  });
}

/** Do it; what the server says against it is shown, and a key is asked for where one is needed. */
async function guarded(act) {
  try {
    await act();
    show(fault, false);
  } catch (error) {
    if (!(error instanceof api.Refusal || error instanceof api.Unreached)) throw error;
    if (error.status === 401) start();
    else setText(fault, error instanceof api.Refusal ? t('refused', { why: error.message }) : t('lost'));
    show(fault, error.status !== 401);
  }
}

// -- beginning ---------------------------------------------------------------------------------------------------

let starting = null;

/** Learn what there is, with a key if one is needed, and show what was open last. */
function start() {
  starting ??= begin().finally(() => (starting = null));
  return starting;
}

async function begin() {
  offers = await askForKey(document.body, api.agents);
  if (!main.isConnected) document.body.replaceChildren(sidebar.node, sidebar.veil, main, ...voice.nodes);
  const id = lasting.get('session');
  const run = lasting.get('run');
  if (current === null && id === null) newChat();
  else if (current === null) await guarded(() => open(id, run));
  if (current === null) newChat();
  composer.focus();
  await listSessions();
  schedule();
}

document.addEventListener('click', (event) => {
  const button = event.target.closest?.('[data-copy=code]');
  if (button) copy(button.closest('.code').querySelector('code').textContent, button);
});
setInterval(() => current?.live && schedule(), TICK);
listenForKeys(page, {
  isEditing: () => editing,
  isRunning: () => current?.live !== null,
  closeSomething: () => menu.close() || (sidebar.isShown() && (sidebar.shown(false), true)),
});
start();
