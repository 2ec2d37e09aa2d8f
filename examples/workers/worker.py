#!/usr/bin/env python3
"""A worker for Stepwell: polls the server for tasks, executes them and reports the results.

Requires only Python 3.9. Add your functions to ACTIONS. A function gets the input and a `Task`, and returns the
output. It raises `Failed` to report an error. Any number of workers may run: a task is leased to one worker at a time.

    STEPWELL_URL=http://127.0.0.1:7077 STEPWELL_KEY=… python3 worker.py
"""

import json
import os
import random
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

URL = os.environ.get("STEPWELL_URL", "http://127.0.0.1:7077").rstrip("/")
KEY = os.environ.get("STEPWELL_KEY", "")
NAME = os.environ.get("WORKER_NAME", f"{socket.gethostname()}-{os.getpid()}")
LEASE_S = int(os.environ.get("WORKER_LEASE_S", "30"))
POLL_S = 5
REPORT_RETRIES = 20
MAX_BACKOFF_S = 30.0

stopping = threading.Event()


class Failed(Exception):
    """The error of a task. A final error is not retried."""

    def __init__(self, code, message, final=False):
        super().__init__(message)
        self.code, self.message, self.final = code, message, final


class LeaseLost(Exception):
    """The lease on the task is no longer valid."""


class Task:
    """A leased task, without its input."""

    def __init__(self, leased):
        self.id, self.fence = leased["id"], leased["fence"]
        self.action, self.attempt = leased["action"], leased["attempt"]
        # The same for every attempt. Pass it to the services you call, so that a retry has no second effect.
        self.idempotency_key = leased["idempotencyKey"]
        # Shown with the task in the API, for example its progress. Sent with the next heartbeat.
        self.note = None
        # Changes to data that the server commits together with the output, or not at all.
        self.writes = []
        self.lease_lost = threading.Event()

    def write(self, action, input, save_as=None):
        """Calls a built-in action, such as `store.set`, in the commit of this step."""
        self.writes.append({"action": action, "input": input, **({"saveAs": save_as} if save_as else {})})

    def check(self):
        """Raises `LeaseLost` if the lease is no longer valid. Call it regularly in long work."""
        if self.lease_lost.is_set():
            raise LeaseLost()


def shout(given, task):
    deadline = time.monotonic() + given.get("seconds", 0)
    while time.monotonic() < deadline:
        task.check()
        time.sleep(0.05)
    if not isinstance(given.get("text"), str):
        raise Failed("noText", "`text` must be a string", final=True)
    return {"text": given["text"].upper()}


ACTIONS = {"text.shout": shout}


def post(path, body):
    """Sends a request and returns the response body. Raises `LeaseLost` if the server reports a lost lease."""
    request = urllib.request.Request(
        URL + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=POLL_S + 30) as response:
            text = response.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        if error.code == 409 and json.loads(error.read() or b"{}").get("code") == "taskGone":
            raise LeaseLost() from None
        raise


def is_retryable(error):
    """Returns True if the same request may succeed later: the server is unreachable or overloaded."""
    return not isinstance(error, urllib.error.HTTPError) or error.code == 429 or error.code >= 500


def backoff_s(attempts):
    """Returns the delay before the next attempt: exponential, with jitter."""
    return random.uniform(0.5, 1.0) * min(MAX_BACKOFF_S, 0.25 * 2 ** min(attempts, 10))


def report(task, outcome, body):
    """Reports the outcome of a task, with retries. Reporting it twice has no second effect."""
    attempts = 0
    while True:
        try:
            post(f"/v1/tasks/{task.id}/{outcome}", {"fence": task.fence, **body})
            return
        except LeaseLost:
            print(f"{NAME}: {task.id}: the lease is no longer valid", flush=True)
            return
        except OSError as error:
            if not is_retryable(error) or attempts == REPORT_RETRIES:
                message = f"{NAME}: the outcome of {task.id} could not be reported: {error}"
                print(message, file=sys.stderr, flush=True)
                return
            time.sleep(backoff_s(attempts))
            attempts += 1


def send_heartbeats(task, done):
    """Renews the lease three times per lease period until the task is done."""
    while not done.wait(LEASE_S / 3):
        try:
            post(f"/v1/tasks/{task.id}/heartbeat", {"fence": task.fence, "lease": f"{LEASE_S}s", "note": task.note})
        except LeaseLost:
            task.lease_lost.set()
            return
        except OSError as error:
            print(f"{NAME}: heartbeat failed: {error}", file=sys.stderr, flush=True)


def execute(leased):
    """Executes one task and reports its outcome."""
    task, done = Task(leased), threading.Event()
    print(f"{NAME}: {task.action} {task.id} fence {task.fence} attempt {task.attempt}", flush=True)
    heartbeats = threading.Thread(target=send_heartbeats, args=(task, done), daemon=True)
    heartbeats.start()
    try:
        outcome, body = "complete", {"output": ACTIONS[task.action](leased["input"], task), "writes": task.writes}
    except LeaseLost:
        outcome, body = None, None
    except Failed as failed:
        error = {"code": failed.code, "message": failed.message}
        outcome, body = "fail", {"error": error, "final": failed.final}
    except Exception as error:  # an unexpected error is reported too, so that the run can retry
        outcome, body = "fail", {"error": {"code": type(error).__name__, "message": str(error)[:4000]}}
    finally:
        done.set()
    heartbeats.join()
    if outcome and not task.lease_lost.is_set():
        report(task, outcome, body)


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    poll = {"actions": list(ACTIONS), "worker": NAME, "lease": f"{LEASE_S}s"}
    print(f"{NAME}: polling {URL} for {', '.join(ACTIONS)}", flush=True)
    attempts = 0
    while not stopping.is_set():
        try:
            tasks, attempts = post(f"/v1/tasks/poll?wait={POLL_S}s", poll)["tasks"], 0
        except OSError as error:
            if not is_retryable(error):
                sys.exit(f"{NAME}: the server refused the request: {error}")
            print(f"{NAME}: cannot reach the server: {error}", file=sys.stderr, flush=True)
            stopping.wait(backoff_s(attempts))
            attempts += 1
            continue
        for leased in tasks:
            execute(leased)


if __name__ == "__main__":
    main()
