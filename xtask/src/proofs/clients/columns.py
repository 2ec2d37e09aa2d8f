"""Publishes versions with and without shadow columns, and compares every listing with a naive model.

Runs start on a version without columns. Then a version with columns is published; a heal fills them. Other runs are migrated
without a heal. Further versions add, drop and move columns. After each phase, runs are listed with their columns and filtered by
equality, prefix and range, in pages of random size. The model is a Python dictionary and a list comprehension.

Uses the Python standard library only, and knows the server by its HTTP API alone.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import shutil
import sys
import tempfile
import time
import urllib.parse

from oracle import Database
from served import Server, made_key

CITIES = ["Bonn", "Bo", "Boppard", "Ulm", "ulm", "Zoë", "\U0010ffff", "", "Köln", "Koblenz", "true", "12"]
TOTALS = [-1e9, -1.5, -1, 0, 0.5, 1, 2, 3, 10, 1e15]
KINDS = {"city": "string", "total": "number", "paid": "boolean", "note": "string"}


def document(columns):
    """Returns a workflow whose columns copy fields of its payload: name to (field, type)."""
    shadows = {name: {"path": f"payload.{field}", "type": KINDS[field]} for name, field in columns.items()}
    return json.dumps({"spec": {"shadows": shadows, "steps": [{"id": "wait", "type": "wait.signal", "signal": "GO"}]}})


def made(chance):
    """Returns a random payload; each field may be missing or have a wrong type."""
    fields = {"city": chance.choice(CITIES), "total": chance.choice(TOTALS), "paid": chance.random() < 0.5, "note": chance.choice(CITIES)}
    for name in list(fields):
        if chance.random() < 0.1:
            fields.pop(name)
        elif chance.random() < 0.05:
            fields[name] = ["wrong"]
    return fields


def fits(field, value):
    return isinstance(value, {"string": str, "number": (int, float), "boolean": bool}[KINDS[field]]) and not (KINDS[field] == "number" and isinstance(value, bool))


def holds(value, operator, wanted):
    """Returns true if a column's value matches. Texts are compared as UTF-8 bytes."""
    if value is None:
        return False
    if isinstance(value, str):
        value, wanted = value.encode(), wanted.encode()
    return {
        "=": lambda: value == wanted, "^=": lambda: value.startswith(wanted), "<": lambda: value < wanted,
        "<=": lambda: value <= wanted, ">": lambda: value > wanted, ">=": lambda: value >= wanted,
    }[operator]()


class World:
    def __init__(self, options, store):
        self.options, self.store, self.chance = options, store, random.Random(options.seed)
        self.folder = tempfile.mkdtemp(prefix="stepwell-columns-")
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.settings = {"STEPWELL_LOG__FILTER": "warn", "STEPWELL_SERVER__REQUESTS_PER_SECOND": "0", "STEPWELL_DATABASE__URL": "sqlite:columns.sqlite"}
        self.database = Database(options.bench, self.log) if store == "postgres" else None
        if self.database:
            self.settings["STEPWELL_DATABASE__URL"] = self.database.url("engine")
            self.settings["STEPWELL_DATABASE__MIGRATE_URL"] = self.database.url("owner")
            self.settings["STEPWELL_DATABASE__SCHEMA"] = self.database.place["schema"]
        # Two processes on PostgreSQL: one publishes and the other heals.
        self.servers = [Server(options.stepwell, self.folder, self.settings, self.log) for _ in range(2 if self.database else 1)]
        self.runs, self.declared, self.version = {}, {}, 0
        self.queries, self.healed, self.migrated, self.findings, self.told = 0, 0, 0, 0, []

    def begin(self):
        self.key = made_key(self.options.stepwell, self.folder, self.settings)
        for server in self.servers:
            server.start()

    def end(self):
        for server in self.servers:
            server.end()
        if self.database:
            self.database.end()
        self.log.close()
        if not self.findings:
            shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, method, path, body=None, kind="application/json", server=None):
        connection = http.client.HTTPConnection((server or self.chance.choice(self.servers)).address, timeout=120)
        data = body if isinstance(body, str) or body is None else json.dumps(body)
        connection.request(method, path, data, {"Authorization": "Bearer " + self.key, "Content-Type": kind})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status >= 300:
            raise SystemExit(f"{method} {path}: {answer.status} {text.decode(errors='replace')}")
        return json.loads(text) if text else None

    def expect(self, what, found, wanted):
        if found != wanted:
            self.findings += 1
            if len(self.told) < 20:
                self.told.append(f"{self.store}, version {self.version}, {what}: found {found}, expected {wanted}")

    def publish(self, columns):
        answer = self.ask("POST", "/v1/workflows/order/versions?activate=true", document(columns), "application/yaml", self.servers[0])
        self.version, self.declared = answer["version"], columns

    def start(self, count):
        for _ in range(count):
            fields = made(self.chance)
            run = self.ask("POST", "/v1/runs", {"workflow": "order", "input": fields}, server=self.servers[0])
            self.runs[run["id"]] = fields

    def columns(self, run):
        """Returns the correct columns of a run."""
        fields = self.runs[run]
        return {name: fields[field] for name, field in self.declared.items() if field in fields and fits(field, fields[field])}

    def heal(self, filters=None):
        """Heals in small batches, through the other process if there is one. Returns the numbers of runs and of changes."""
        sums, cursor = [0, 0], None
        while True:
            body = {"workflow": "order", "batch": self.chance.randint(3, 40), **(filters or {}), **({"cursor": cursor} if cursor else {})}
            done = self.ask("POST", "/v1/maintenance/heal", body, server=self.servers[-1])
            self.expect("unreadable or missed runs", (done["unreadable"], done["missed"]), (0, 0))
            sums[0], sums[1], cursor = sums[0] + done["runs"], sums[1] + done["changed"], done.get("nextCursor")
            if not cursor:
                self.healed += sums[1]
                return tuple(sums)

    def migrate(self, runs):
        for run in runs:
            self.ask("POST", f"/v1/runs/{run}/migrate", {"version": self.version})
            self.migrated += 1

    def listed(self, conditions=()):
        """Returns the rows of all pages, which are of random sizes."""
        query = [("workflow", "order"), ("columns", "true"), *(("where", condition) for condition in conditions)]
        rows, cursor = [], None
        while True:
            more = [("limit", str(self.chance.randint(1, 200))), *([("cursor", cursor)] if cursor else [])]
            page = self.ask("GET", "/v1/runs?" + urllib.parse.urlencode(query + more))
            rows, cursor = rows + page["items"], page.get("nextCursor")
            if not cursor:
                return rows

    def condition(self):
        name = self.chance.choice(list(self.declared))
        kind = KINDS[self.declared[name]]
        if kind == "boolean":
            return name, "=", self.chance.random() < 0.5
        if kind == "number":
            return name, self.chance.choice(["=", "<", "<=", ">", ">="]), self.chance.choice(TOTALS)
        text = self.chance.choice(CITIES)
        operator = self.chance.choice(["=", "^=", "^=", "<", "<=", ">", ">="])
        return name, operator, text[: self.chance.randint(0, 3)] if operator == "^=" else text

    def check(self, queries):
        rows = self.listed()
        self.expect("columns", {row["id"]: row["columns"] for row in rows}, {run: self.columns(run) for run in self.runs})
        for _ in range(queries if self.declared else 0):
            conditions = [self.condition() for _ in range(self.chance.choice([1, 1, 2, 3]))]
            texts = [f"{name}{operator}{json.dumps(value)}" for name, operator, value in conditions]
            held = {run: self.columns(run) for run in self.runs}
            wanted = [run for run, values in held.items() if all(holds(values.get(name), operator, value) for name, operator, value in conditions)]
            if any(operator == "=" for _, operator, _ in conditions):
                wanted.sort(reverse=True)
            else:
                key = conditions[0][0]
                wanted.sort(key=lambda run: ((held[run][key].encode() if isinstance(held[run][key], str) else held[run][key]), run))
            self.queries += 1
            self.expect(" and ".join(texts), [row["id"] for row in self.listed(texts)], wanted)

    def run(self):
        count, queries = self.options.runs, self.options.queries
        # No columns, and then two of them: a heal fills every value.
        self.publish({})
        self.start(count)
        self.check(0)
        self.publish({"city": "city", "total": "total"})
        self.expect("heal", self.heal(), (count, sum(len(self.columns(run)) for run in self.runs)))
        self.expect("second heal", self.heal(), (count, 0))
        self.check(queries)
        # A migration fills the columns that are new, and removes those that are gone.
        self.publish({"city": "city", "paid": "paid"})
        self.migrate(list(self.runs))
        self.check(queries)
        self.expect("heal after migration", self.heal(), (count, 0))
        # New runs have columns at once. A moved path is healed, in runs of three versions.
        self.start(count // 4)
        self.check(queries)
        self.publish({"city": "note", "total": "total", "paid": "paid"})
        self.expect("filtered heal", self.heal({"status": "completed"}), (0, 0))
        self.heal({"status": "waiting"})
        self.check(queries)
        self.expect("heal after heal", self.heal(), (len(self.runs), 0))


def options():
    parser = argparse.ArgumentParser(description="Compares the shadow columns of published workflows with a naive model.")
    parser.add_argument("--stepwell", required=True, help="path of the program `stepwell`")
    parser.add_argument("--bench", required=True, help="path of the program `stepwell-bench`, which runs PostgreSQL")
    parser.add_argument("--runs", type=int, default=400, help="number of runs that start without columns")
    parser.add_argument("--queries", type=int, default=150, help="number of filters after each phase")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the JSON result only")
    given = parser.parse_args()
    given.stepwell, given.bench = os.path.abspath(given.stepwell), os.path.abspath(given.bench)
    return given


def measured(given, store):
    """Runs everything on one database and returns the findings."""
    began = time.monotonic()
    world = World(given, store)
    try:
        world.begin()
        world.run()
    finally:
        world.end()
    line = {
        "workload": "columns", "store": store, "seed": given.seed, "runs": len(world.runs), "healed": world.healed, "migrated": world.migrated,
        "queries": world.queries, "findings": world.findings, "seconds": round(time.monotonic() - began, 1),
    }
    return line, world.told


def main():
    given = options()
    # The databases are measured at the same time, because heals mostly wait until a version is known everywhere.
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda store: measured(given, store), ["sqlite", "postgres"]))
    for line, told in done:
        print(json.dumps(line), flush=True)
        for text in told:
            print(text, file=sys.stderr)
    return 1 if any(line["findings"] for line, _ in done) else 0


if __name__ == "__main__":
    sys.exit(main())
