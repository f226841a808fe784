/** The server's routes, as this page uses them. Addresses are relative to where this file was served from. */

import { hear } from './clock.js';
import { ofTab } from './storage.js';

const BASE = new URL('../../api/', import.meta.url);

/** The server said no: `status`, its `kind` and message, and after how many seconds one may ask again. */
export class Refusal extends Error {
  /** @param {number} status @param {string} kind @param {string} message @param {number | null} wait */
  constructor(status, kind, message, wait = null) {
    super(message);
    this.status = status;
    this.kind = kind;
    this.wait = wait;
  }
}

/** The server was not reached, or the connection broke. */
export class Unreached extends Error {}

/**
 * The value of a promise of the network; where that fails, `Unreached`. What was aborted stays aborted.
 * @template T @param {Promise<T>} promise @returns {Promise<T>}
 */
export function reached(promise) {
  return promise.catch((error) => {
    throw error.name === 'AbortError' ? error : new Unreached(String(error));
  });
}

/** Whether there is no use in asking again. @param {unknown} error */
export function isFinal(error) {
  return error instanceof Refusal && error.status < 500 && error.status !== 408 && error.status !== 429;
}

/** Keep the key for as long as the tab lives; null forgets it. @param {string | null} key */
export function keepKey(key) {
  ofTab.set('key', key);
}

/**
 * An answer. Raises `Refusal` and `Unreached`.
 * @param {string} path @param {RequestInit & {json?: unknown}} [options]
 * @returns {Promise<Response>}
 */
export async function ask(path, { json, headers, ...options } = {}) {
  const key = ofTab.get('key');
  const sent = fetch(new URL(path, BASE), {
    ...options,
    headers: {
      ...headers,
      ...(key === null ? {} : { Authorization: `Bearer ${key}` }),
      ...(json === undefined ? {} : { 'Content-Type': 'application/json' }),
    },
    body: json === undefined ? undefined : JSON.stringify(json),
  });
  const response = await reached(sent);
  hear(Date.parse(response.headers.get('Date')));
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error ?? { kind: 'unavailable', message: `${response.status} ${response.statusText}` };
  const wait = Number.parseInt(response.headers.get('Retry-After') ?? '', 10);
  return new Refusal(response.status, String(error.kind), String(error.message), Number.isNaN(wait) ? null : wait);
}

const part = encodeURIComponent;
const get = async (path) => reached((await ask(path)).json());
const post = (path, json) => ask(path, { method: 'POST', json });

export const agents = () => get('agents');
export const sessions = () => get('sessions?limit=100');
/** @param {string} id @param {number} after The number of the turn after which it begins. */
export const session = (id, after) => get(`sessions/${part(id)}?after=${after}&limit=50`);
export const forgetSession = (id) => ask(`sessions/${part(id)}`, { method: 'DELETE' });
/** @param {object} body @param {AbortSignal} signal */
export const begin = (body, signal) => ask('agent/stream', { method: 'POST', json: body, signal });
/** @param {string} runId @param {number} after @param {AbortSignal} signal */
export const events = (runId, after, signal) => ask(`runs/${part(runId)}/events?after=${after}`, { signal });
/** @param {string} runId @param {'cancel' | 'answer' | 'approve' | 'reject' | 'amend'} verb @param {object} body */
export const decide = (runId, verb, body) => post(`runs/${part(runId)}/${verb}`, body);
