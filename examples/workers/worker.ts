// A worker for Stepwell: polls the server for tasks, executes them and reports the results.
//
// Requires only Node 20. Add your functions to `actions`. A function gets the input and the task, and returns the
// output. It throws `Failed` to report an error. Any number of workers may run: a task is leased to one at a time.
//
//     npx -p typescript tsc --target es2022 --module commonjs --lib es2022,dom --strict worker.ts --outDir out
//     STEPWELL_URL=http://127.0.0.1:7077 STEPWELL_KEY=… node out/worker.js

declare const process: {
  env: Record<string, string | undefined>;
  pid: number;
  exitCode: number;
  on(signal: "SIGTERM" | "SIGINT", handler: () => void): void;
};

const url = (process.env.STEPWELL_URL ?? "http://127.0.0.1:7077").replace(/\/$/, "");
const key = process.env.STEPWELL_KEY ?? "";
const name = process.env.WORKER_NAME ?? `node-${process.pid}`;
const leaseS = Number(process.env.WORKER_LEASE_S ?? "30");
const pollS = 5;
const maxReportAttempts = 20;
const maxBackoffMs = 30_000;

/** A leased task. */
interface Task {
  readonly id: string;
  readonly fence: number;
  readonly action: string;
  readonly input: unknown;
  readonly run: string;
  readonly workflow: string;
  readonly attempt: number;
  /** The same for every attempt. Pass it to the services you call, so that a retry has no second effect. */
  readonly idempotencyKey: string;
  readonly leaseUntil: string;
  readonly deadline?: string;
}

/** Executes a task. `leaseLost` is aborted when the lease is no longer valid: stop then. */
type Action = (input: any, task: Task, leaseLost: AbortSignal) => Promise<unknown>;

/** The error of a task. A final error is not retried. */
class Failed extends Error {
  constructor(readonly code: string, message: string, readonly final = false) {
    super(message);
  }
}

/** The lease on the task is no longer valid. */
class LeaseLost extends Error {}

/** The server refused the request, and would refuse it again. */
class Refused extends Error {}

const actions: Record<string, Action> = {
  "text.count": async (input, _task, leaseLost) => {
    await sleep(1000 * (input.seconds ?? 0), leaseLost);
    if (typeof input.text !== "string") {
      throw new Failed("noText", "`text` must be a string", true);
    }
    return { characters: [...input.text].length };
  },
};

let stopping = false;

function sleep(ms: number, abort?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    abort?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** Waits before the next attempt: exponential backoff with jitter. */
function backoff(attempts: number): Promise<void> {
  return sleep((0.5 + Math.random() / 2) * Math.min(maxBackoffMs, 250 * 2 ** Math.min(attempts, 10)));
}

/** Sends a request and returns the response body. Errors other than `LeaseLost` and `Refused` are retryable. */
async function post(path: string, body: object): Promise<any> {
  const response = await fetch(url + path, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(1000 * (pollS + 30)),
  });
  const text = await response.text();
  if (response.ok) {
    return text === "" ? undefined : JSON.parse(text);
  }
  if (response.status === 409 && text.includes('"taskGone"')) {
    throw new LeaseLost("the lease is no longer valid");
  }
  if (response.status === 429 || response.status >= 500) {
    throw new Error(`${response.status} ${text}`);
  }
  throw new Refused(`${response.status} ${text}`);
}

/** Reports the outcome of a task, with retries. Reporting it twice has no second effect. */
async function report(task: Task, outcome: "complete" | "fail", body: object): Promise<void> {
  let lastError: unknown;
  for (let attempts = 0; attempts < maxReportAttempts; attempts++) {
    try {
      await post(`/v1/tasks/${task.id}/${outcome}`, { fence: task.fence, ...body });
      return;
    } catch (error) {
      if (error instanceof LeaseLost || error instanceof Refused) {
        console.log(`${name}: ${task.id}: the outcome was refused: ${error.message}`);
        return;
      }
      lastError = error;
      await backoff(attempts);
    }
  }
  console.error(`${name}: the outcome of ${task.id} could not be reported: ${lastError}`);
}

/** Executes one task and reports its outcome. Renews the lease three times per lease period. */
async function execute(task: Task): Promise<void> {
  console.log(`${name}: ${task.action} ${task.id} fence ${task.fence} attempt ${task.attempt}`);
  const leaseLost = new AbortController();
  const heartbeats = setInterval(() => {
    post(`/v1/tasks/${task.id}/heartbeat`, { fence: task.fence, lease: `${leaseS}s` }).catch((error) => {
      if (error instanceof LeaseLost) {
        leaseLost.abort();
      } else {
        console.error(`${name}: heartbeat failed: ${error}`);
      }
    });
  }, (1000 * leaseS) / 3);
  try {
    const output = await actions[task.action](task.input, task, leaseLost.signal);
    if (!leaseLost.signal.aborted) {
      await report(task, "complete", { output });
    }
  } catch (error) {
    const failed = error instanceof Failed ? error : new Failed("error", String(error).slice(0, 4000));
    if (!leaseLost.signal.aborted) {
      await report(task, "fail", { error: { code: failed.code, message: failed.message }, final: failed.final });
    }
  } finally {
    clearInterval(heartbeats);
  }
}

async function main(): Promise<void> {
  process.on("SIGTERM", () => (stopping = true));
  process.on("SIGINT", () => (stopping = true));
  const poll = { actions: Object.keys(actions), worker: name, lease: `${leaseS}s` };
  console.log(`${name}: polling ${url} for ${poll.actions.join(", ")}`);
  for (let attempts = 0; !stopping; ) {
    try {
      const leased: { tasks: Task[] } = await post(`/v1/tasks/poll?wait=${pollS}s`, poll);
      attempts = 0;
      for (const task of leased.tasks) {
        await execute(task);
      }
    } catch (error) {
      if (error instanceof Refused) {
        console.error(`${name}: the server refused the request: ${error.message}`);
        process.exitCode = 1;
        return;
      }
      console.error(`${name}: cannot reach the server: ${error}`);
      await backoff(attempts++);
    }
  }
}

main();

export {};
