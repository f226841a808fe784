/** In which order rows stand: it changes at most every five seconds, and never under the pointer or the focus. Pure. */

const CALM = 5000; // ms

export class Order {
  /** @type {string[]} */
  #ids = [];
  #at = -Infinity;

  /** Sort at the next time, whatever stands there: somebody asked for it. */
  renew() {
    this.#at = -Infinity;
    this.#ids = [];
  }

  /**
   * The rows in their order. New ones stand at the end until the next sorting; those that are gone leave, but not from
   * under the pointer.
   * @param {string[]} wanted All, sorted. @param {number} now ms @param {boolean} held
   * @returns {string[]}
   */
  take(wanted, now, held) {
    if (this.#ids.length === 0 || (!held && now - this.#at >= CALM)) {
      this.#ids = wanted;
      this.#at = now;
      return wanted;
    }
    const [had, has] = [new Set(this.#ids), new Set(wanted)];
    const kept = held ? this.#ids : this.#ids.filter((id) => has.has(id));
    this.#ids = [...kept, ...wanted.filter((id) => !had.has(id))];
    return this.#ids;
  }
}
