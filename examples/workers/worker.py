#!/usr/bin/env python3
"""A worker for Stepwell: it asks the server for tasks, does them, and says what came of them.

It needs nothing but Python 3.9. Put your own functions into ACTIONS; each takes the input and a `Task`, and gives the
output. Raise `Failed` to say why something went wrong. Start as many workers as you like: a task is one worker's at a time.

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
WAIT_S = 5
LONGEST_PAUSE_S = 30.0

stopping = threading.Event()


class Failed(Exception):
    """Why a task has failed. A final failure is not tried again."""

    def __init__(self, code, message, final=False):
        super().__init__(message)
        self.code, self.message, self.final = code, message, final


class Gone(Exception):
    """The task is not this worker's any more."""


class Task:
    """What a function may want to know beside its input."""

    def __init__(self, given):
        self.id, self.fence = given["id"], given["fence"]
        self.action, self.attempt = given["action"], given["attempt"]
        # The same for every try: give it to whatever you call, so that it does the same thing once.
        self.idempotency_key = given["idempotencyKey"]
        self.note = None
        self.gone = threading.Event()

    def check(self):
        """Raises if somebody else has the task by now. Call it now and then in long work."""
        if self.gone.is_set():
            raise Gone()


def shout(given, task):
    deadline = time.monotonic() + given.get("seconds", 0)
    while time.monotonic() < deadline:
        task.check()
        time.sleep(0.05)
    if not isinstance(given.get("text"), str):
        raise Failed("noText", "there is no text to shout", final=True)
    return {"text": given["text"].upper()}


ACTIONS = {"text.shout": shout}


def ask(path, body):
    """Asks the server; gives what it answers. Raises `Gone` if it says that the task is somebody else's."""
    request = urllib.request.Request(
        URL + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S + 30) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        if error.code == 409 and json.loads(error.read() or b"{}").get("code") == "taskGone":
            raise Gone() from None
        raise


def may_pass(error):
    """The same request may succeed later: the server is away, or has too much to do."""
    return not isinstance(error, urllib.error.HTTPError) or error.code == 429 or error.code >= 500


def pause(tries):
    """Waits ever longer, and not everybody for the same time."""
    stopping.wait(random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_S, 0.25 * 2 ** min(tries, 10)))


def tell(task, what, body):
    """Says what came of a task, again and again if the server is away. To say it twice does no harm."""
    tries = 0
    while True:
        try:
            ask(f"/v1/tasks/{task.id}/{what}", {"fence": task.fence, **body})
            return
        except Gone:
            print(f"{NAME}: {task.id} was given to somebody else", flush=True)
            return
        except OSError as error:
            if not may_pass(error) or tries == 20:
                print(f"{NAME}: what came of {task.id} could not be told: {error}", file=sys.stderr, flush=True)
                return
            time.sleep(random.uniform(0.5, 1.0) * min(LONGEST_PAUSE_S, 0.25 * 2 ** min(tries, 10)))
            tries += 1


def keep(task, done):
    """Says that the worker is still at it, three times in a lease."""
    while not done.wait(LEASE_S / 3):
        try:
            ask(f"/v1/tasks/{task.id}/heartbeat", {"fence": task.fence, "lease": f"{LEASE_S}s", "note": task.note})
        except Gone:
            task.gone.set()
            return
        except OSError as error:
            print(f"{NAME}: no heartbeat: {error}", file=sys.stderr, flush=True)


def work(given):
    """Does one task."""
    task, done = Task(given), threading.Event()
    print(f"{NAME}: {task.action} {task.id} fence {task.fence} attempt {task.attempt}", flush=True)
    heart = threading.Thread(target=keep, args=(task, done), daemon=True)
    heart.start()
    try:
        what, body = "complete", {"output": ACTIONS[task.action](given["input"], task)}
    except Gone:
        what, body = None, None
    except Failed as failed:
        error = {"code": failed.code, "message": failed.message}
        what, body = "fail", {"error": error, "final": failed.final}
    except Exception as error:  # whatever it is, the run is to hear of it
        what, body = "fail", {"error": {"code": type(error).__name__, "message": str(error)[:4000]}}
    finally:
        done.set()
    heart.join()
    if what and not task.gone.is_set():
        tell(task, what, body)


def main():
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    wanted = {"actions": list(ACTIONS), "worker": NAME, "lease": f"{LEASE_S}s"}
    print(f"{NAME}: asks {URL} for {', '.join(ACTIONS)}", flush=True)
    tries = 0
    while not stopping.is_set():
        try:
            tasks, tries = ask(f"/v1/tasks/poll?wait={WAIT_S}s", wanted)["tasks"], 0
        except OSError as error:
            if not may_pass(error):
                sys.exit(f"{NAME}: the server refuses: {error}")
            print(f"{NAME}: the server is away: {error}", file=sys.stderr, flush=True)
            pause(tries)
            tries += 1
            continue
        for given in tasks:
            work(given)


if __name__ == "__main__":
    main()
