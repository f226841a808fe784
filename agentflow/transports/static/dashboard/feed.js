/**
 * What the server tells of all runs: a snapshot, the events after it, and what no event tells every few seconds.
 *
 * Events are read from the moment before the snapshot is asked for, and those that it has counted are passed over. So
 * nothing is counted twice or not at all. After a gap a new snapshot comes first.
 */

import * as api from '../shared/api.js';
import { hear } from '../shared/clock.js';
import { FrameReader } from '../shared/sse.js';

const FIRST_WAIT = 1000; // ms after a break; each that follows is twice as long
const LONGEST_WAIT = 15_000;
const REFRESH = 60_000; // ms after which a new snapshot drops runs that went away without a word

/** @param {AbortSignal} signal @param {string | null} position */
const events = (signal, position) => api.ask('events', { signal, headers: position === null ? {} : { 'Last-Event-ID': position } });
export const snapshot = async () => api.reached((await api.ask('operator/snapshot')).json());
export const health = async () => api.reached((await api.ask('operator/health')).json());

/**
 * Follow all runs for as long as the page lives, over as many connections as it takes.
 *
 * Raises what the server refuses for good.
 * @param {object} on
 * @param {(snapshot: object) => void} on.load
 * @param {(event: object) => void} on.event
 * @param {(gap: {missed: number}) => void} on.gap Before the snapshot that mends it.
 * @param {() => void} on.restarted Another process answers: what follows begins with its snapshot.
 * @param {(lost: {since: number, until: number} | null) => void} on.lost Times of `performance.now()`.
 * @param {EventTarget} wake Its event `wake` ends a wait.
 */
export async function feed(on, wake) {
  const reading = new Reading(on);
  let wait = FIRST_WAIT;
  let since = null;
  for (;;) {
    const control = new AbortController();
    const before = reading.frames;
    try {
      const response = await events(control.signal, reading.position);
      if (since !== null) on.lost(null);
      since = null;
      await reading.read(response);
    } catch (error) {
      if (!(error instanceof api.Unreached || error instanceof api.Refusal) || api.isFinal(error)) throw error;
    } finally {
      control.abort();
    }
    if (reading.frames > before) wait = FIRST_WAIT;
    const at = performance.now();
    since ??= at;
    on.lost({ since, until: at + wait });
    await sleep(wait, wake);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

class Reading {
  frames = 0;
  /** @type {string | null} Up to where all is counted: that of a snapshot, or of the last event. */
  position = null;
  #on;
  #held = []; // events that wait for a snapshot
  #loaded = null; // when the last snapshot was asked for
  #loading = false;
  #again = false;

  constructor(on) {
    this.#on = on;
  }

  async read(response) {
    const reader = response.body.getReader();
    const frames = new FrameReader(this.position);
    const failed = new Promise((_, fail) => (this.fail = fail));
    failed.catch(() => {}); // told by the race below, where one is still run
    if (this.#loaded === null) this.#load();
    for (;;) {
      const { done, value } = await Promise.race([api.reached(reader.read()), failed]);
      if (done) return;
      const told = frames.frames(value);
      this.#meet(frames.lastId);
      for (const [id, data] of told) this.#frame(id, JSON.parse(data));
      if (performance.now() - this.#loaded > REFRESH) this.#load();
    }
  }

  /** Note which process answers, by the first id that it tells. */
  #meet(id) {
    if (this.position !== null && epochOf(this.position) !== epochOf(id)) {
      this.#on.restarted();
      this.#load();
    }
    if (this.position === null || epochOf(this.position) !== epochOf(id)) this.position = id;
  }

  #frame(id, event) {
    this.frames += 1;
    if (event.type === 'gap') {
      this.#on.gap(event);
      this.#load();
    } else if (this.#loading) this.#held.push([id, event]);
    else this.#count(id, event);
  }

  #count(id, event) {
    if (!isAfter(id, this.position)) return; // the snapshot has it
    this.position = id;
    hear(Date.parse(event.ts));
    this.#on.event(event);
  }

  /** Ask for a snapshot, and hold what comes meanwhile. */
  async #load() {
    this.#loaded = performance.now();
    this.#again = this.#loading; // what is on its way may have been counted before what was missed
    if (this.#loading) return;
    this.#loading = true;
    try {
      let told = await snapshot();
      while (this.#again) {
        this.#again = false;
        told = await snapshot();
      }
      this.position = told.position;
      this.#on.load(told);
      for (const [id, event] of this.#held) this.#count(id, event);
    } catch (error) {
      this.#loaded = null; // the next connection asks again
      this.fail(error);
    } finally {
      this.#held = [];
      this.#loading = false;
    }
  }
}

const epochOf = (id) => id.split(':')[0];

/** Whether an event is after a position of the same process. */
function isAfter(id, position) {
  const [epoch, number] = id.split(':');
  const [now, counted] = position.split(':');
  return epoch === now && Number(number) > Number(counted);
}

function sleep(ms, wake) {
  return new Promise((resolve) => {
    const ends = [[window, 'online'], [wake, 'wake']];
    const end = () => {
      clearTimeout(timer);
      for (const [target, name] of ends) target.removeEventListener(name, end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    for (const [target, name] of ends) target.addEventListener(name, end);
  });
}
