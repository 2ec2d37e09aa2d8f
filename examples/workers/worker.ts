// A worker for Stepwell: it asks the server for tasks, does them, and says what came of them.
//
// It needs nothing but Node 20. Put your own functions into `actions`; each takes the input and the task, and gives the output.
// Throw `Failed` to say why something went wrong. Start as many workers as you like: a task is one worker's at a time.
//
//     npx -p typescript tsc --target es2022 --module commonjs --lib es2022,dom --strict worker.ts --outDir out
//     STEPWELL_URL=http://127.0.0.1:7077 STEPWELL_KEY=… node out/worker.js

declare const process: {
  env: Record<string, string | undefined>;
  pid: number;
  exitCode: number;
  on(signal: "SIGTERM" | "SIGINT", then: () => void): void;
};

const url = (process.env.STEPWELL_URL ?? "http://127.0.0.1:7077").replace(/\/$/, "");
const key = process.env.STEPWELL_KEY ?? "";
const name = process.env.WORKER_NAME ?? `node-${process.pid}`;
const leaseS = Number(process.env.WORKER_LEASE_S ?? "30");
const waitS = 5;
const longestPauseMs = 30_000;

/** A task as the server gives it. */
interface Task {
  readonly id: string;
  readonly fence: number;
  readonly action: string;
  readonly input: unknown;
  readonly run: string;
  readonly workflow: string;
  readonly attempt: number;
  /** The same for every try: give it to whatever you call, so that it does the same thing once. */
  readonly idempotencyKey: string;
  readonly leaseUntil: string;
  readonly deadline?: string;
}

/** Does a task. `gone` is aborted when the task is somebody else's: stop then. */
type Action = (input: any, task: Task, gone: AbortSignal) => Promise<unknown>;

/** Why a task has failed. A final failure is not tried again. */
class Failed extends Error {
  constructor(readonly code: string, message: string, readonly final = false) {
    super(message);
  }
}

/** The task is not this worker's any more. */
class Gone extends Error {}

/** The server says no, and will say no again. */
class Refused extends Error {}

const actions: Record<string, Action> = {
  "text.count": async (input, _task, gone) => {
    await sleep(1000 * (input.seconds ?? 0), gone);
    if (typeof input.text !== "string") {
      throw new Failed("noText", "there is no text to count", true);
    }
    return { characters: [...input.text].length };
  },
};

let stopping = false;

function sleep(ms: number, unless?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    unless?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** Waits ever longer, and not everybody for the same time. */
function pause(tries: number): Promise<void> {
  return sleep((0.5 + Math.random() / 2) * Math.min(longestPauseMs, 250 * 2 ** Math.min(tries, 10)));
}

/** Asks the server; what it throws other than `Gone` and `Refused` may pass. */
async function ask(path: string, body: object): Promise<any> {
  const answer = await fetch(url + path, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(1000 * (waitS + 30)),
  });
  const text = await answer.text();
  if (answer.ok) {
    return text === "" ? undefined : JSON.parse(text);
  }
  if (answer.status === 409 && text.includes('"taskGone"')) {
    throw new Gone(text);
  }
  if (answer.status === 429 || answer.status >= 500) {
    throw new Error(`${answer.status} ${text}`);
  }
  throw new Refused(`${answer.status} ${text}`);
}

/** Says what came of a task, again and again if the server is away. To say it twice does no harm. */
async function tell(task: Task, what: "complete" | "fail", body: object): Promise<void> {
  for (let tries = 0; tries < 20; tries++) {
    try {
      await ask(`/v1/tasks/${task.id}/${what}`, { fence: task.fence, ...body });
      return;
    } catch (error) {
      if (error instanceof Gone || error instanceof Refused) {
        console.log(`${name}: ${task.id} is not taken: ${error.message}`);
        return;
      }
      await pause(tries);
    }
  }
  console.error(`${name}: what came of ${task.id} could not be told`);
}

/** Does one task, and says three times in a lease that it is still at it. */
async function work(task: Task): Promise<void> {
  console.log(`${name}: ${task.action} ${task.id} fence ${task.fence} attempt ${task.attempt}`);
  const gone = new AbortController();
  const heart = setInterval(() => {
    ask(`/v1/tasks/${task.id}/heartbeat`, { fence: task.fence, lease: `${leaseS}s` }).catch((error) => {
      if (error instanceof Gone) {
        gone.abort();
      } else {
        console.error(`${name}: no heartbeat: ${error}`);
      }
    });
  }, (1000 * leaseS) / 3);
  try {
    const output = await actions[task.action](task.input, task, gone.signal);
    if (!gone.signal.aborted) {
      await tell(task, "complete", { output });
    }
  } catch (error) {
    const failed = error instanceof Failed ? error : new Failed("error", String(error).slice(0, 4000));
    if (!gone.signal.aborted) {
      await tell(task, "fail", { error: { code: failed.code, message: failed.message }, final: failed.final });
    }
  } finally {
    clearInterval(heart);
  }
}

async function main(): Promise<void> {
  process.on("SIGTERM", () => (stopping = true));
  process.on("SIGINT", () => (stopping = true));
  const wanted = { actions: Object.keys(actions), worker: name, lease: `${leaseS}s` };
  console.log(`${name}: asks ${url} for ${wanted.actions.join(", ")}`);
  for (let tries = 0; !stopping; ) {
    try {
      const given: { tasks: Task[] } = await ask(`/v1/tasks/poll?wait=${waitS}s`, wanted);
      tries = 0;
      for (const task of given.tasks) {
        await work(task);
      }
    } catch (error) {
      if (error instanceof Refused) {
        console.error(`${name}: the server refuses: ${error.message}`);
        process.exitCode = 1;
        return;
      }
      console.error(`${name}: the server is away: ${error}`);
      await pause(tries++);
    }
  }
}

main();

export {};
