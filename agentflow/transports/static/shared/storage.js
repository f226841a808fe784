/** What the browser keeps: choices and the open session for good, the key only as long as the tab. */

const PREFIX = 'agentflow.';

/**
 * A storage whose faults are no faults of the page: where it is off or full, nothing is kept.
 * @param {() => Storage} storage
 */
function kept(storage) {
  const quietly = (use) => {
    try {
      return use(storage());
    } catch (error) {
      if (error instanceof DOMException) return null;
      throw error;
    }
  };
  return {
    /** @param {string} name @returns {string | null} */
    get: (name) => quietly((found) => found.getItem(PREFIX + name)),
    /** @param {string} name @param {string | null} value None forgets it. */
    set: (name, value) =>
      quietly((found) => (value === null ? found.removeItem(PREFIX + name) : found.setItem(PREFIX + name, value))),
  };
}

export const lasting = kept(() => localStorage);
export const ofTab = kept(() => sessionStorage);
