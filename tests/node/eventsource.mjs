// Listens with npm's EventSource until it gives up: node eventsource.mjs URL.
// Prints a line of JSON for each thing that happens: {open: n}, {data, id}, {error: code, closed}.
import { EventSource } from "eventsource";

const source = new EventSource(process.argv[2]);
let opened = 0;
const tell = (what) => console.log(JSON.stringify(what));

source.onopen = () => tell({ open: (opened += 1) });
source.onmessage = ({ data, lastEventId }) => tell({ data: JSON.parse(data), id: lastEventId });
source.onerror = ({ code }) => tell({ error: code ?? null, closed: source.readyState === EventSource.CLOSED });
