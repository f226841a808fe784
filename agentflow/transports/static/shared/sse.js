/** Server-Sent Events as they come by `fetch`. It reads frames and knows nothing of what they say. */

/** Reads a stream piece by piece; `lastId` is what to come back with. */
export class FrameReader {
  #decoder = new TextDecoder();
  #rest = '';
  #data = [];

  /** @param {string | null} lastId */
  constructor(lastId = null) {
    this.lastId = lastId;
  }

  /**
   * The data of the frames that are whole now. A piece may end anywhere, within a character too.
   * @param {Uint8Array} bytes
   * @returns {string[]}
   */
  read(bytes) {
    return this.frames(bytes).map(([, data]) => data);
  }

  /**
   * The same, each with its id: that of the frame, or of the last one that had any.
   * @param {Uint8Array} bytes
   * @returns {[string | null, string][]}
   */
  frames(bytes) {
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split('\n');
    this.#rest = lines.pop();
    const told = [];
    for (const line of lines) {
      const data = this.#line(line);
      if (data !== null) told.push([this.lastId, data]);
    }
    return told;
  }

  /** What is dispatched at the end of this line, if anything. */
  #line(line) {
    if (line === '') {
      const data = this.#data.length ? this.#data.join('\n') : null;
      this.#data = [];
      return data;
    }
    const colon = line.indexOf(':');
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
    if (name === 'data') this.#data.push(value);
    else if (name === 'id') this.lastId = value;
    return null;
  }
}
