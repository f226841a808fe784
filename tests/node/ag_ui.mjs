// Plays steps on one thread with the official client: node ag_ui.mjs URL STEPS, where STEPS is a JSON array of objects
// with what is said (`say`), answers to all interrupts (`resume`), or when to abort (`abort`, an event's type).
// Prints a JSON array with what the client has after each step.
import { HttpAgent, buildResumeArray } from "@ag-ui/client";

const [url, steps] = process.argv.slice(2);
const agent = new HttpAgent({ url, threadId: "thread-1" });
const seen = [];

for (const step of JSON.parse(steps)) {
  const events = [];
  let error = null;
  const subscriber = {
    onEvent: ({ event }) => {
      events.push(event);
      if (step.abort && event.type === step.abort) agent.abortRun();
    },
    onRunFailed: ({ error: failure }) => {
      error = String(failure.message ?? failure);
    },
  };
  if (step.say !== undefined) {
    agent.addMessage({ id: `user-${seen.length}`, role: "user", content: step.say });
  }
  const answers = Object.fromEntries(agent.pendingInterrupts.map(({ id }) => [id, step.resume]));
  const resume = step.resume ? buildResumeArray(agent.pendingInterrupts, answers) : undefined;
  try {
    await agent.runAgent(resume ? { resume } : {}, subscriber);
  } catch (failure) {
    error = String(failure.message ?? failure);
  }
  seen.push({ events, error, messages: agent.messages, state: agent.state, pending: agent.pendingInterrupts });
}
console.log(JSON.stringify(seen));
