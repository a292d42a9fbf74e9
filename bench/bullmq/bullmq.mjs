// Delayed jobs of BullMQ, as a contender of `laneway-bench delay`.
//
//   node bullmq.mjs ingest PORT SECONDS              prints {"count", "seconds"}
//   node bullmq.mjs due PORT START_MS PER_SECOND COUNT  prints {"came": [µs of the wall clock or 0, ...]}
//
// PER_SECOND 0: all are due at START_MS.

import { Queue, Worker } from 'bullmq';

const AT_ONCE = 500;
const CLIENTS = 4;
const CONCURRENCY = 256;
const WEEK_MS = 7 * 24 * 3600 * 1000;
const PATIENCE_MS = 60_000;

const [mode, port, ...rest] = process.argv.slice(2);
const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const queue = new Queue('due', { connection });
const options = { removeOnComplete: true, removeOnFail: true };

const micros = () => Math.floor((performance.timeOrigin + performance.now()) * 1000);
const body = (number) => String(number).padStart(10, '0').padEnd(126, 'x');
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function ingest(seconds) {
  const started = performance.now();
  let count = 0;
  const client = async () => {
    while (performance.now() - started < seconds * 1000) {
      const jobs = Array.from({ length: AT_ONCE }, (_, number) => ({
        name: 'due', data: body(number), opts: { ...options, delay: WEEK_MS },
      }));
      await queue.addBulk(jobs);
      count += AT_ONCE;
    }
  };
  await Promise.all(Array.from({ length: CLIENTS }, client));
  return { count, seconds: (performance.now() - started) / 1000 };
}

async function due(start, perSecond, count) {
  const came = new Array(count).fill(0);
  let seen = 0;
  const worker = new Worker('due', async (job) => {
    const number = Number(job.data.slice(0, 10));
    if (came[number] === 0) {
      came[number] = micros();
      seen += 1;
    }
  }, { connection, concurrency: CONCURRENCY });
  await worker.waitUntilReady();

  const dueAt = (number) => start + (perSecond > 0 ? Math.ceil((number * 1000) / perSecond) : 0);
  const client = async (first) => {
    for (let from = first * AT_ONCE; from < count; from += CLIENTS * AT_ONCE) {
      const timestamp = Date.now();
      const numbers = Array.from({ length: Math.min(AT_ONCE, count - from) }, (_, at) => from + at);
      await queue.addBulk(numbers.map((number) => ({
        name: 'due',
        data: body(number),
        opts: { ...options, timestamp, delay: Math.max(1, dueAt(number) - timestamp) },
      })));
    }
  };
  await Promise.all(Array.from({ length: CLIENTS }, (_, first) => client(first)));
  if (Date.now() >= start) throw new Error('they were not taken before the first was due');

  const span = perSecond > 0 ? (count * 1000) / perSecond : 0;
  const deadline = start + span + PATIENCE_MS;
  while (seen < count && Date.now() < deadline) await sleep(20);
  return { came };
}

const numbers = rest.map(Number);
const result = mode === 'ingest' ? await ingest(...numbers) : await due(...numbers);
await new Promise((resolve) => process.stdout.write(`${JSON.stringify(result)}\n`, resolve));
// Neither the queue nor the worker is closed: their server is about to be stopped.
process.exit(0);
