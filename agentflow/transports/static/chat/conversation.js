/**
 * One session as the page holds it: its turns, the run that goes on, and what was sent and has not begun.
 *
 * A turn is a message and the run it began. Runs are followed until they end, shown or not. How it looks is elsewhere.
 */

import * as api from '../shared/api.js';
import { follow } from '../shared/follow.js';
import { fold, newRun } from './state.js';
import { runOfTurn } from './stored.js';

const TURNS = 20; // that are loaded at once

/** Letters enough to be nobody else's. */
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/**
 * A message and its run. `body` is what was sent for it, `refused` why it was not taken: an error, or "offline";
 * `version` counts how often the run was read anew.
 */
const newTurn = (key, run) => ({ key, run, follows: false, refused: null, body: null, version: 0 });

export class Conversation {
  #changed;
  #earliest = 0; // the number of the turn before the first that is loaded
  #lost = new EventTarget();
  #ends = new AbortController();

  /**
   * @param {string | null} id None for a new one.
   * @param {(conversation: Conversation) => void} changed Called whenever anything of it is different.
   */
  constructor(id, changed) {
    this.id = id ?? newId();
    this.isNew = id === null;
    this.#changed = () => changed(this);
    this.turns = [];
    this.queue = []; // messages that are sent when the run ends: {key, text, choice}
    this.lost = null; // see `follow`
    this.backAt = null; // when there was a connection again, as `performance.now()` tells it
    this.stopping = false;
    this.fault = null; // why it could not be loaded
  }

  /** The turn that goes on, if any. */
  get live() {
    return this.turns.find((turn) => turn.follows) ?? null;
  }

  /** The last turn there is. */
  get last() {
    return this.turns.at(-1) ?? null;
  }

  /** Whether there are turns before the first. */
  get hasEarlier() {
    return this.#earliest > 0;
  }

  /** Read the newest turns, and follow the run that goes on. Raises `Refusal` and `Unreached`. */
  async load() {
    const { turns_stored: count, active_run: active } = await api.session(this.id, 10 ** 15 - 1);
    const stored = await this.#read(Math.max(count - TURNS, 0), count);
    const known = new Set(this.turns.map((turn) => turn.run.id));
    this.turns = [...stored.filter((turn) => !known.has(turn.run.id)), ...this.turns];
    this.#changed();
    if (active !== null && !this.turns.some((turn) => turn.run.id === active)) this.resume(active);
  }

  /** Read turns before the first that is there. */
  async loadEarlier() {
    const end = this.#earliest;
    this.turns = [...(await this.#read(Math.max(end - TURNS, 0), end)), ...this.turns];
    this.#changed();
  }

  /** The turns after a number up to another. A run whose events are no longer kept is told from what was said. */
  async #read(after, end) {
    const { turns } = await api.session(this.id, after);
    this.#earliest = after;
    const read = turns.slice(0, end - after).map(async (stored) => {
      const run = (await eventsOf(stored.run_id)) ?? runOfTurn(stored);
      return newTurn(stored.run_id, run);
    });
    return Promise.all(read);
  }

  /** Follow a run that was begun elsewhere or before. @param {string} runId */
  resume(runId) {
    const turn = this.#turn(runId, newRun());
    turn.run.id = runId;
    this.#follow(turn, { runId });
  }

  /** Send a message, or queue it behind the run that goes on. @param {string} text @param {object} choice */
  send(text, choice) {
    if (this.live !== null) {
      this.queue.push({ key: newId(), text, choice });
      this.#changed();
      return;
    }
    const requestId = newId();
    const turn = this.#turn(requestId, newRun(text));
    turn.body = { input: text, session_id: this.id, request_id: requestId, ...choice };
    this.isNew = false;
    this.#begin(turn);
  }

  /** Send a message again that was not sent. The server begins it once, however often it is sent. */
  sendAgain(turn) {
    turn.refused = null;
    this.#begin(turn);
  }

  /** Take a queued message back, and give its text. @param {string} key */
  takeBack(key) {
    const found = this.queue.find((message) => message.key === key);
    this.queue = this.queue.filter((message) => message !== found);
    this.#changed();
    return found?.text ?? '';
  }

  /** Ask for the end of the run. */
  async stop() {
    const { live } = this;
    if (live === null || this.stopping) return;
    this.stopping = true;
    this.#changed();
    if (live.run.id === null) return; // it is asked for once the run has a name
    await this.#cancel(live.run.id);
  }

  async #cancel(runId) {
    try {
      await api.decide(runId, 'cancel', {});
    } catch (error) {
      this.stopping = false;
      this.#changed();
      if (!(error instanceof api.Refusal || error instanceof api.Unreached)) throw error;
    }
  }

  /** Decide what waits. Raises `Refusal` and `Unreached`. */
  decide(verb, body) {
    return api.decide(this.live.run.id, verb, body);
  }

  /** Read a run again from its first event. */
  async reload(turn) {
    turn.run = (await eventsOf(turn.run.id)) ?? turn.run;
    turn.version += 1;
    this.#changed();
  }

  /** Try the connection now. */
  tryNow() {
    this.#lost.dispatchEvent(new Event('wake'));
  }

  /** Follow nothing any more. */
  leave() {
    this.#ends.abort();
  }

  #turn(key, run) {
    const turn = newTurn(key, run);
    this.turns.push(turn);
    return turn;
  }

  #begin(turn) {
    return this.#follow(turn, {
      runId: null,
      begin: (signal) => this.#sent(turn, signal),
    });
  }

  /** Before anything has come of it, a message that does not get there is for its writer to send again. */
  async #sent(turn, signal) {
    try {
      return await api.begin(turn.body, signal);
    } catch (error) {
      throw error instanceof api.Unreached ? new NotSent() : error;
    }
  }

  async #follow(turn, how) {
    turn.follows = true;
    this.#changed();
    const onEvents = (events) => {
      for (const event of events) fold(turn.run, event);
      if (this.stopping && events[0].seq === 1) this.#cancel(turn.run.id);
      this.#changed();
    };
    const onLost = (lost) => {
      this.backAt = lost === null ? performance.now() : null;
      this.lost = lost;
      this.#changed();
    };
    try {
      await follow({ ...how, onEvents, onLost, signal: this.#ends.signal, wake: this.#lost });
    } catch (error) {
      if (!(error instanceof NotSent || error instanceof api.Refusal)) throw error;
      turn.refused = error instanceof NotSent ? 'offline' : error;
    } finally {
      turn.follows = false;
      this.stopping = false;
      this.lost = null;
      this.backAt = null;
      this.#changed();
    }
    if (turn.refused === null) this.#next();
  }

  #next() {
    const message = this.queue.shift();
    if (message !== undefined) this.send(message.text, message.choice);
  }
}

class NotSent extends Error {}

/** A run that has ended, from its events; null if they are no longer kept. */
async function eventsOf(runId) {
  const run = newRun();
  try {
    await follow({
      runId,
      onEvents: (events) => events.forEach((event) => fold(run, event)),
      onLost: () => {},
      signal: new AbortController().signal,
    });
  } catch (error) {
    if (error instanceof api.Refusal && error.status === 404) return null;
    throw error;
  }
  return run.end === null ? null : run;
}
