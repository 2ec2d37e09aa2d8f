"""Retries many failed runs with one bulk command while the server is killed, and checks that each run is retried exactly once.

The client counts the audited commands of each run. It knows the server by its API alone. Another bulk command is cancelled in the
middle, and the remaining runs must be untouched.

With `--plant`, the records of the commands are deleted from the database while the server is down, so that a command of the batch
in progress is executed again. The check must find that.

Uses the Python standard library only.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time

from served import Database, Server, made_key

# The step fails because the value is not a number. It fails again after each retry, so that a second retry would be possible.
DOCUMENT = """name: job
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: bulk, key: broken } }
"""
SECONDS = 120


class Bulk:
    def __init__(self, options, store):
        self.options, self.store = options, store
        self.folder = tempfile.mkdtemp(prefix="stepwell-bulk-")
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.database = Database(options.bench, self.log) if store == "postgres" else None
        own = self.database.settings() if self.database else {"STEPWELL_DATABASE__URL": "sqlite:bulk.sqlite"}
        self.settings = {**own, "STEPWELL_SERVER__AUTH_FAILURES_PER_MINUTE": "0"}
        self.key = made_key(options.stepwell, self.folder, self.settings) if store == "sqlite" else None
        self.server = Server(options.stepwell, self.folder, self.settings, self.log)
        self.server.start()
        self.key = self.key or made_key(options.stepwell, self.folder, self.settings)
        self.findings = []

    def ask(self, method, path, body=None, kind="application/json", headers=None):
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        try:
            data = body if isinstance(body, str) or body is None else json.dumps(body)
            sent = {"Authorization": "Bearer " + self.key, "Content-Type": kind, **(headers or {})}
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:600]!r}")
        return json.loads(text) if text else {}

    def pages(self, path):
        cursor, between = "", "&" if "?" in path else "?"
        while cursor is not None:
            page = self.ask("GET", f"{path}{between}limit=200{cursor}")
            yield from page["items"]
            cursor = "&cursor=" + page["nextCursor"] if "nextCursor" in page else None

    def wait(self, condition, what):
        end = time.monotonic() + SECONDS
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > end:
                raise SystemExit(f"{self.store}: after {SECONDS} s it is not true that {what}")
            time.sleep(0.01)

    def prepare(self, count):
        """Starts the runs and waits until all have failed. Returns their ids."""
        self.ask("POST", "/v1/workflows/job/versions?activate=true", DOCUMENT, "application/yaml")
        self.ask("PUT", "/v1/kv/bulk/broken", {"value": "not a number"})
        runs = []
        for first in range(0, count, 1_000):
            starts = [{"workflow": "job", "key": f"job-{number}"} for number in range(first, min(first + 1_000, count))]
            answer = self.ask("POST", "/v1/runs/batch", {"starts": starts})
            if answer["created"] != len(starts):
                raise SystemExit(f"not all runs were started: {answer}")
            runs += [item["id"] for item in answer["items"]]
        going = lambda: any(self.ask("GET", f"/v1/runs?workflow=job&status={status}&limit=1")["items"] for status in ("running", "pending", "waiting"))
        self.wait(lambda: not going(), "all runs have failed")
        return runs

    def begin(self, command, key, **more):
        body = {"command": command, "filter": {"workflow": "job", "status": ["failed"]}, "reason": "a proof", **more}
        return self.ask("POST", "/v1/bulk", body, headers={"Idempotency-Key": key})["id"]

    def show(self, bulk):
        return self.ask("GET", f"/v1/bulk/{bulk}")

    def processed(self, bulk):
        shown = self.show(bulk)
        return shown["done"] + shown["failed"] + shown["skipped"]

    def forget(self):
        """Deletes the records of the commands from the database, while the server is down."""
        database = sqlite3.connect(os.path.join(self.folder, "bulk.sqlite"))
        with database:
            tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
            for table in tables:
                columns = [row[1] for row in database.execute(f"pragma table_info('{table}')")]
                if "operation" in columns and table != "audit":
                    database.execute(f"delete from {table} where operation like 'stepwell.bulk:%'")
        database.close()

    def retried(self):
        """Returns the number of audited retries of each run, and the bulk commands that they name."""
        counts, named = collections.Counter(), set()
        for row in self.pages("/v1/audit"):
            if row["operation"] == "run.retry":
                counts[row["run"]] += 1
                named.add((row["detail"].get("bulk"), row["detail"].get("reason"), row["actor"]))
        return counts, named

    def retry(self, runs, kills, is_planted):
        """Retries all runs with one bulk command, and kills the server meanwhile. Returns the seconds without the kills."""
        began, bulk = time.monotonic(), self.begin("retry", "monday")
        for number in range(1, kills + 1):
            at = len(runs) * number // (kills + 1)
            self.wait(lambda: self.processed(bulk) >= at, f"{at} runs are processed")
            self.server.kill()
            if is_planted:
                self.forget()
            self.server.start()
            if self.begin("retry", "monday") != bulk:
                self.findings.append("a repeated start with the same key is another bulk command")
        shown = self.wait(lambda: (lambda shown: shown if "endedAt" in shown else None)(self.show(bulk)), "the bulk command has ended")
        seconds = time.monotonic() - began
        counts, named = self.retried()
        wrong = {run: counts[run] for run in runs if counts[run] != 1}
        if wrong or len(counts) != len(runs):
            self.findings.append(f"{len(wrong)} of {len(runs)} runs have another number of retries than one: {list(wrong.items())[:5]}")
        if named != {(bulk, "a proof", "apikey:client")}:
            self.findings.append(f"the audit trail names {named}")
        numbers = [shown[field] for field in ("total", "done", "failed", "skipped")]
        if shown["status"] != "completed" or numbers != [len(runs), len(runs), 0, 0]:
            self.findings.append(f"the bulk command says {shown}")
        results = collections.Counter(result["run"] for result in self.pages(f"/v1/bulk/{bulk}/results") if result["outcome"] == "done")
        if results != collections.Counter(runs):
            self.findings.append(f"{len(results)} runs have a result, {sum(results.values())} results in total")
        return seconds

    def cancel(self, runs):
        """Suspends the runs with a bulk command that is cancelled in the middle. Returns the number of runs that it left."""
        for attempt in range(5):
            bulk = self.begin("suspend", f"tuesday-{attempt}")
            self.wait(lambda: self.processed(bulk) > 0, "the first runs are suspended")
            try:
                self.ask("POST", f"/v1/bulk/{bulk}/cancel?wait=30s", {"reason": "a proof"})
            except SystemExit:
                # It has ended before.
                self.ask("POST", "/v1/bulk?wait=60s", {"command": "resume", "filter": {"workflow": "job"}})
                continue
            break
        shown = self.wait(lambda: (lambda shown: shown if "endedAt" in shown else None)(self.show(bulk)), "the bulk command has ended")
        suspended = {run["id"] for run in self.pages("/v1/runs?workflow=job&status=suspended")}
        touched = {row["run"] for row in self.pages("/v1/audit") if row["operation"] == "run.suspend" and row["detail"].get("bulk") == bulk}
        if shown["status"] != "cancelled":
            self.findings.append(f"the bulk command is {shown['status']}")
        if not suspended == touched or len(touched) != shown["done"]:
            self.findings.append(f"{len(suspended)} runs are suspended, {len(touched)} audited, and {shown['done']} counted")
        if not 0 < shown["done"] < len(runs):
            self.findings.append(f"the bulk command was not cancelled in the middle: {shown['done']} of {len(runs)}")
        return len(runs) - shown["done"]

    def end(self):
        self.server.end()
        if self.database:
            self.database.end()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def measured(options, store):
    began, proof = time.monotonic(), Bulk(options, store)
    try:
        runs = proof.prepare(options.runs)
        seconds = proof.retry(runs, options.kills, False)
        left = proof.cancel(runs)
        return {
            "workload": "bulk", "store": store, "runs": len(runs), "kills": options.kills, "retry_s": round(seconds, 1), "left": left,
            "findings": len(proof.findings), "seconds": round(time.monotonic() - began, 1),
        }, proof.findings
    finally:
        proof.end()


def planted(options):
    """Returns true if the check finds that commands were executed twice. A kill between two batches leaves nothing to find."""
    for _ in range(3):
        proof = Bulk(options, "sqlite")
        try:
            proof.retry(proof.prepare(options.planted_runs), 5, True)
            if any("number of retries" in finding for finding in proof.findings):
                return True
        finally:
            proof.end()
    return False


def main():
    parser = argparse.ArgumentParser(description="Retries many runs with one bulk command while the server is killed.")
    parser.add_argument("--stepwell", required=True, help="path of the server program")
    parser.add_argument("--bench", required=True, help="path of `stepwell-bench`, which runs the database")
    parser.add_argument("--runs", type=int, default=5_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--plant", action="store_true", help="delete the records of the commands: the check must find it")
    parser.add_argument("--planted-runs", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="accepted for all clients; the output is always JSON")
    options = parser.parse_args()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        stores = [pool.submit(measured, options, store) for store in ("sqlite", "postgres")]
        plant = pool.submit(planted, options) if options.plant else None
        done = [store.result() for store in stores]
        found = plant.result() if plant else None
    for line, findings in done:
        print(json.dumps(line))
        for finding in findings:
            print(f"{line['store']}: {finding}"[:1500], file=sys.stderr)
    if options.plant:
        print(json.dumps({"workload": "bulk-plant", "found": found}))
    return 1 if any(findings for _, findings in done) or found is False else 0


if __name__ == "__main__":
    sys.exit(main())
