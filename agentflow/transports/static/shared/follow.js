/** A run followed to its end over as many connections as it takes. Nothing is shown here, and nothing is lost. */

import * as api from './api.js';
import { hear } from './clock.js';
import { FrameReader } from './sse.js';

const FIRST_WAIT = 1000; // ms after a break; each that follows is twice as long
const LONGEST_WAIT = 15000;
const ENDS = new Set(['final', 'failed', 'cancelled']);

/**
 * Follow a run, or begin one.
 *
 * Events come in order, each once, as many at a time as have come. Where the connection breaks it is made again from
 * the last event, for as long as it takes. Resolves at the run's end; raises what the server refuses for good.
 *
 * @param {object} what
 * @param {string | null} what.runId None for one that is only to be begun.
 * @param {(signal: AbortSignal) => Promise<Response>} [what.begin] Begins it; done again with the same request id.
 * @param {(events: object[]) => void} what.onEvents
 * @param {(lost: {since: number, until: number} | null) => void} what.onLost Times of `performance.now()`: since when
 *   there is no connection, and when the next is tried. Null once there is one.
 * @param {AbortSignal} what.signal
 * @param {EventTarget} [what.wake] Its event `wake` ends a wait.
 */
export async function follow({ runId, begin, onEvents, onLost, signal, wake }) {
  const cursor = { runId, seq: 0, ended: false };
  let since = null;
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    const before = cursor.seq;
    try {
      const response = cursor.runId === null ? await begin(signal) : await api.events(cursor.runId, cursor.seq, signal);
      if (since !== null) onLost(null);
      since = null;
      if (response.status === 204) return;
      await pump(response, cursor, onEvents);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof api.Unreached || error instanceof api.Refusal) || api.isFinal(error)) throw error;
      if (error instanceof api.Refusal && error.wait !== null) wait = Math.max(wait, error.wait * 1000);
    }
    if (cursor.ended || signal.aborted) return;
    if (cursor.seq > before) wait = FIRST_WAIT;
    const at = performance.now();
    since ??= at;
    onLost({ since, until: at + wait });
    await sleep(wait, signal, wake);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  }
}

/** Read a response to its end. What was seen already is passed over; where one is missing, reading stops. */
async function pump(response, cursor, onEvents) {
  const frames = new FrameReader();
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await api.reached(reader.read());
    if (done) return;
    const fresh = [];
    for (const event of frames.read(value).flatMap((data) => JSON.parse(data))) {
      if (event.type === 'gap') {
        cursor.seq = event.next_seq - 1; // told what is missing: the page shows it
        fresh.push(event);
        continue;
      }
      if (event.seq <= cursor.seq) continue;
      if (event.seq > cursor.seq + 1) {
        await reader.cancel();
        return;
      }
      cursor.seq = event.seq;
      cursor.ended ||= ENDS.has(event.type) && event.chain_id === event.run_id;
      fresh.push(event);
    }
    cursor.runId ??= frames.lastId?.split(':')[0] ?? null;
    if (fresh.length) {
      hear(Date.parse(fresh.at(-1).ts));
      onEvents(fresh);
    }
  }
}

/** Wait so many ms, or until woken, back online, or not wanted any more. */
function sleep(ms, signal, wake) {
  return new Promise((resolve) => {
    const ends = [[signal, 'abort'], [window, 'online'], ...(wake ? [[wake, 'wake']] : [])];
    const end = () => {
      clearTimeout(timer);
      for (const [target, name] of ends) target.removeEventListener(name, end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    for (const [target, name] of ends) target.addEventListener(name, end);
  });
}
