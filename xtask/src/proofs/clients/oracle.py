"""An independent client of the HTTP API that records everything acknowledged, while it kills and stops the server.

Clients start and signal runs, write keys, links and changes, send events, start and resume flows, and let a schedule fire.
A request without an answer is repeated under the same idempotency key until there is an answer. Meanwhile servers are killed,
or stopped for longer than their lease, database sessions are terminated, and the database is killed. In the end every
acknowledged effect must exist exactly once, and nothing else may exist.

With `--plant`, requests and answers are falsified in many ways (`Liar`). Each way must be detected.

Two tenants do the same concurrently, with the same ids, names and keys but different values. Each has its own records.

Uses the Python standard library only, and of Stepwell only its two programs.
"""

import argparse
import base64
import collections
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
from datetime import datetime

from served import Database, Server, made_key

# Lease of a server in seconds: one that is stopped for longer counts as dead.
LEASE = 2.0
# Time in seconds for repeating a request, and for accepted work to finish.
PATIENCE = 90.0
SOURCE = "urn:example:oracle"
SCHEDULE = {"cron": "* * * * * *", "workflow": "tick", "missed": "all"}

WORKFLOWS = {
    "bell": """
steps:
  - { id: go, type: wait.signal, signal: GO }
  - { id: count, type: action.call, action: store.increment, input: { namespace: rung, key: { $expr: payload.name } } }
  - { id: done, type: control.return, value: { $expr: vars.go.n } }
""",
    "order": """
trigger: { id: paid, type: event, eventName: order.paid }
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: orders, key: { $expr: payload.order } } }
""",
    "parcel": """
steps:
  - { id: seen, type: wait.event, eventName: parcel.seen, correlation: { event: event.parcel, run: payload.parcel } }
  - { id: count, type: action.call, action: store.increment, input: { namespace: parcels, key: { $expr: payload.parcel } } }
""",
    "form": """
steps:
  - { id: asked, type: wait.signal, signal: ANSWER }
  - { id: count, type: action.call, action: store.increment, input: { namespace: forms, key: { $expr: payload.name } } }
  - { id: done, type: control.return, value: { $expr: vars.asked.n } }
""",
    "tick": """
steps:
  - { id: count, type: action.call, action: store.increment, input: { namespace: ticks, key: all } }
""",
}


class Findings:
    """The detected problems, counted by kind."""

    def __init__(self):
        self.lock = threading.Lock()
        self.kinds = collections.Counter()
        self.told = []

    def add(self, kind, what):
        with self.lock:
            self.kinds[kind] += 1
            if self.kinds[kind] <= 3:
                self.told.append(f"{kind}: {what}")


class Gone(Exception):
    """No answer arrived, so the outcome is unknown."""


class Caller:
    """A connection to one of the servers, chosen at random for each request."""

    def __init__(self, world, number, key):
        self.world, self.number, self.key = world, number, key
        self.random = random.Random(world.options.seed * 1000 + number)
        self.connection, self.address = None, None

    def send(self, method, path, body=None, headers=None):
        """Sends one request. Returns status and body, or raises `Gone`."""
        servers = self.world.servers
        address = servers[self.random.randrange(len(servers))].address
        try:
            if self.connection is None or self.address != address:
                if self.connection:
                    self.connection.close()
                self.connection, self.address = http.client.HTTPConnection(address, timeout=8), address
            sent = {"Authorization": "Bearer " + self.key, "Content-Type": "application/json", **(headers or {})}
            data = body if isinstance(body, str) or body is None else json.dumps(body)
            self.connection.request(method, path, data, sent)
            answer = self.connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if self.connection:
                self.connection.close()
            self.connection = None
            raise Gone(str(error)) from error

    def ask(self, method, path, body=None, headers=None, again=False):
        """Repeats a request until an answer tells its outcome."""
        until = time.monotonic() + PATIENCE
        send = self.world.liar.between(self, again) if self.world.liar else self.send
        why = ""
        while time.monotonic() < until:
            try:
                status, answer = send(method, path, body, headers)
            except Gone as gone:
                why = str(gone)
                self.world.repeated += 1
                time.sleep(0.02)
                continue
            if status < 500 and status != 429 and not (answer or {}).get("retryable"):
                return status, answer
            if status == 500:
                self.world.findings.add("server error", f"{method} {path}: {answer}")
            why = f"{status} {answer}"
            self.world.repeated += 1
            time.sleep(0.02)
        raise SystemExit(f"{method} {path} got no final answer for {PATIENCE} s: {why}")

    def do(self, kind, method, path, body=None, headers=None, again=False):
        """Sends a request that must succeed. Returns the answer, or records a finding and returns `None`."""
        status, answer = self.ask(method, path, body, headers, again)
        if status < 300:
            return answer
        self.world.findings.add(kind, f"{method} {path} got {status} {answer}")
        return None


class Books:
    """The acknowledged effects of one client."""

    def __init__(self):
        self.bells = {}        # run: (name, key of the start, payload of its signal)
        self.parcels = {}      # parcel: run
        self.orders = set()
        self.forms = {}        # flow: (name, answer)
        self.value = None      # of its own key: (value, revision)
        self.wins = {}         # of shared keys: (number, revision): value
        self.counted = 0
        self.changed = 0
        self.links = set()
        self.extra = set()     # runs started because a key was forgotten


class Tenant:
    """One of the tenants, with its clients."""

    def __init__(self, world, name, key):
        self.world, self.name, self.key = world, name, key
        self.clients, self.first_firing = [], None

    def begin(self):
        caller = Caller(self.world, 999, self.key)
        for name, text in WORKFLOWS.items():
            path = f"/v1/workflows/{name}/versions?activate=true"
            published = caller.do("not published", "POST", path, text, {"Content-Type": "application/yaml"})
            if not published:
                raise SystemExit(self.world.findings.told[-1])
        put = caller.do("schedule refused", "PUT", "/v1/schedules/tick", SCHEDULE)
        if not put:
            raise SystemExit(self.world.findings.told[-1])
        # The schedule may already have fired since the PUT.
        shown = caller.do("schedule lost", "GET", "/v1/schedules/tick")
        if not shown:
            raise SystemExit(self.world.findings.told[-1])
        self.first_firing = moment(shown["nextFirings"][0]) - shown["fired"]
        self.clients = [Client(self, number) for number in range(self.world.options.clients)]
        for client in self.clients:
            client.start()


class Client(threading.Thread):
    def __init__(self, tenant, number):
        super().__init__(daemon=True)
        self.world, self.number, self.whose = tenant.world, number, tenant.name
        self.caller, self.books, self.round = Caller(tenant.world, number, tenant.key), Books(), 0
        # Both tenants make the same choices.
        self.random = random.Random(tenant.world.options.seed * 77 + number)
        self.values = random.Random(f"{tenant.name} {number}")
        self.failed = None

    def run(self):
        parts = [self.bell, self.again, self.register, self.shared, self.count, self.change, self.link, self.event, self.parcel, self.form]
        try:
            while not self.world.is_over:
                self.round += 1
                for part in self.random.sample(parts, len(parts)):
                    part()
        except BaseException as error:  # Reported by the thread that joins this one.
            self.failed = error

    def name(self, of):
        return f"{of}-{self.number}-{self.round}"

    def bell(self):
        name, brings = self.name("bell"), self.values.randrange(1_000_000)
        body, key = self.begins(name), self.name("start")
        started = self.caller.do("start refused", "POST", "/v1/runs", body, {"Idempotency-Key": key})
        if not started:
            return
        run = started["id"]
        self.books.bells[run] = (name, key, None)
        path = f"/v1/runs/{run}/signals/GO"
        if self.caller.do("start lost", "POST", path, {"n": brings}, {"Idempotency-Key": self.name("go")}):
            self.books.bells[run] = (name, key, brings)

    def begins(self, name):
        return {"workflow": "bell", "id": str(uuid.uuid5(uuid.NAMESPACE_URL, name)), "input": {"name": name}}

    def again(self):
        """Repeats a request under the same key, which must give the same answer; a different request must be refused."""
        if not self.books.bells:
            return
        run, (name, key, _) = self.random.choice(list(self.books.bells.items()))
        body = self.begins(name)
        status, answer = self.caller.ask("POST", "/v1/runs", body, {"Idempotency-Key": key}, again=True)
        if status >= 300 or answer["id"] != run:
            self.world.findings.add("key forgotten", f"{key} returned {run}, then {status} {answer}")
            self.books.extra.add((answer or {}).get("id"))
        body["input"]["name"] = name + " and another"
        status, answer = self.caller.ask("POST", "/v1/runs", body, {"Idempotency-Key": key})
        if status != 422:
            self.world.findings.add("key used for two", f"{key}: {status} {answer}")

    def register(self):
        """Writes a key that only this client writes, each time with the expected revision."""
        path, value = f"/v1/kv/own/client-{self.number}", f"{self.whose} {self.round}"
        known = self.books.value
        headers = {"Idempotency-Key": self.name("own")}
        headers.update({"If-Match": f'"{known[1]}"'} if known else {"If-None-Match": "*"})
        written = self.caller.do("write lost", "PUT", path, {"value": value}, headers)
        if written:
            if written["revision"] != (known[1] if known else 0) + 1:
                self.world.findings.add("write twice", f"{path}: {known} became {written}")
            self.books.value = (value, written["revision"])
        else:
            found = self.caller.do("write lost", "GET", path)
            self.books.value = (found["value"], found["revision"]) if found else None

    def shared(self):
        """Writes a key that all clients write with the revision they read: exactly one of them wins."""
        number = self.random.randrange(3)
        path = f"/v1/kv/shared/register-{number}"
        status, found = self.caller.ask("GET", path)
        revision = found["revision"] if status == 200 else 0
        value = f"{self.whose} {self.name('shared')}"
        headers = {"Idempotency-Key": self.name("shared"), **({"If-Match": f'"{revision}"'} if revision else {"If-None-Match": "*"})}
        status, written = self.caller.ask("PUT", path, {"value": value}, headers)
        if status < 300:
            self.books.wins[(number, written["revision"])] = value
            if written["revision"] != revision + 1:
                self.world.findings.add("two winners", f"{path}: revision {revision} became {written['revision']}")
        elif status != 412:
            self.world.findings.add("write refused", f"{path}: {status} {written}")

    def count(self):
        path = f"/v1/kv/counts/client-{self.number}/increment"
        if self.caller.do("count refused", "POST", path, {"by": 1}, {"Idempotency-Key": self.name("count")}):
            self.books.counted += 1

    def change(self):
        """Increments two keys in one change."""
        changes = [{"op": "increment", "namespace": side, "key": f"client-{self.number}"} for side in ("left", "right")]
        if self.caller.do("change refused", "POST", "/v1/data", {"changes": changes}, {"Idempotency-Key": self.name("data")}):
            self.books.changed += 1

    def link(self):
        links = sorted(self.books.links)
        if links and self.random.random() < 0.3:
            one = self.random.choice(links)
            ends = urllib.parse.urlencode({"fromType": "client", "fromId": self.number, "toType": "thing", "toId": one})
            gone = self.caller.do("unlink refused", "DELETE", f"/v1/links/oracle?{ends}", headers={"Idempotency-Key": self.name("unlink")})
            if gone:
                self.books.links.discard(one)
                if gone["deletedCount"] != 1:
                    self.world.findings.add("link lost", f"{one} did not exist when it was deleted")
            return
        one = self.name("thing")
        body = {"from": {"type": "client", "id": str(self.number)}, "to": {"type": "thing", "id": one}}
        if self.caller.do("link refused", "PUT", "/v1/links/oracle", body, {"Idempotency-Key": self.name("link")}):
            self.books.links.add(one)

    def emit(self, name, id, data):
        event = {"specversion": "1.0", "id": id, "source": SOURCE, "type": name, "data": data}
        return self.caller.do("event refused", "POST", "/v1/events", event, {"Content-Type": "application/cloudevents+json"})

    def event(self):
        order = self.name("order")
        for _ in range(self.random.choice([1, 1, 2])):
            if self.emit("order.paid", order, {"order": order}):
                self.books.orders.add(order)

    def parcel(self):
        """Starts a run that waits for an event, which is sent before or after the start."""
        parcel = self.name("parcel")
        body, key = {"workflow": "parcel", "input": {"parcel": parcel}}, self.name("await")
        begins_first = self.random.random() < 0.5
        if not begins_first:
            self.emit("parcel.seen", parcel, {"parcel": parcel})
        started = self.caller.do("start refused", "POST", "/v1/runs", body, {"Idempotency-Key": key})
        if begins_first:
            self.emit("parcel.seen", parcel, {"parcel": parcel})
        if started:
            self.books.parcels[parcel] = started["id"]

    def form(self):
        name, number = self.name("form"), self.values.randrange(1_000_000)
        key = {"Idempotency-Key": name}
        asked = self.caller.do("flow refused", "POST", "/v1/flows/form", {"input": {"name": name}}, key)
        if not asked:
            return
        body = {"token": asked["token"], "input": {"n": number}}
        if not self.caller.do("flow lost", "POST", "/v1/flows/resume", body, {"Idempotency-Key": name + "-answer"}):
            return
        self.books.forms[asked["flow"]] = (name, number)
        body["input"]["n"] = number + 1
        status, answer = self.caller.ask("POST", "/v1/flows/resume", body, {"Idempotency-Key": name + "-other"})
        if status < 300:
            self.world.findings.add("token used twice", f"{name}: {status} {answer}")


def without_id(body):
    return {name: value for name, value in body.items() if name != "id"}


class Liar:
    """Falsifies requests and answers, each way once. The records of the client do not contain it."""

    # The kind of finding that each lie must cause.
    FOUND_AS = {
        "a start is acknowledged and not executed": "start lost",
        "a start is executed twice": "run too many",
        "a signal is acknowledged and not executed": "signal lost",
        "a signal has another payload": "signal changed",
        "a write is acknowledged and not executed": "write lost",
        "a write ignores the revision": "two winners",
        "an increment is executed twice": "counted too often",
        "an increment is acknowledged and not executed": "counted too rarely",
        "a link is deleted": "link lost",
        "a link is not deleted": "link too many",
        "a key is forgotten": "key forgotten",
        "an event is delivered twice": "event twice",
        "an event is acknowledged and lost": "event lost",
        "a token is accepted twice": "token used twice",
        "a change is half applied": "change torn",
        "a schedule misses a firing": "firing missing",
    }

    def __init__(self):
        self.lock = threading.Lock()
        self.left = set(self.FOUND_AS)

    def once(self, lie):
        with self.lock:
            if lie not in self.left:
                return False
            self.left.discard(lie)
            return True

    def between(self, caller, again):
        def send(method, path, body, headers):
            changed = self.changed(caller, again, method, path, body, headers)
            return changed if changed else caller.send(method, path, body, headers)

        return send

    def changed(self, caller, again, method, path, body, headers):
        """Returns the falsified answer to a request, or `None` if the request is sent unchanged."""
        other = {**(headers or {}), "Idempotency-Key": (headers or {}).get("Idempotency-Key", "") + "-lie"}
        # Each client gets other lies, so that no lie hides another.
        mine, key = caller.number % 4, (headers or {}).get("Idempotency-Key", "")
        if path == "/v1/runs" and key.startswith("start") and not again and "and another" not in json.dumps(body):
            if mine == 0 and self.once("a start is acknowledged and not executed"):
                return 201, {"id": str(uuid.uuid4()), "created": True}
            if mine == 1 and self.once("a start is executed twice"):
                caller.send(method, path, without_id(body), other)
        elif path == "/v1/runs" and again and self.once("a key is forgotten"):
            return caller.send(method, path, without_id(body), {})
        elif "/signals/" in path:
            if mine == 2 and self.once("a signal is acknowledged and not executed"):
                return 200, {"outcome": "consumed"}
            if mine == 3 and self.once("a signal has another payload"):
                return caller.send(method, path, {"n": -1}, headers)
        elif path.startswith("/v1/kv/own") and method == "PUT" and "If-Match" in headers and self.once("a write is acknowledged and not executed"):
            return 200, {"created": False, "revision": int(headers["If-Match"].strip('"')) + 1}
        elif path.startswith("/v1/kv/shared") and method == "PUT":
            answer = caller.send(method, path, body, headers)
            if answer[0] == 412 and self.once("a write ignores the revision"):
                return caller.send(method, path, body, {"Idempotency-Key": key + "-lie"})
            return answer
        elif path.endswith("/increment"):
            if mine == 0 and self.once("an increment is executed twice"):
                caller.send(method, path, body, other)
            if mine == 1 and self.once("an increment is acknowledged and not executed"):
                return 200, {"value": 1, "revision": 1}
        elif path.startswith("/v1/links"):
            if mine == 0 and method == "DELETE" and self.once("a link is not deleted"):
                return 200, {"deletedCount": 1}
            if mine == 1 and method == "PUT" and self.once("a link is deleted"):
                answer = caller.send(method, path, body, headers)
                ends = {"fromType": "client", "fromId": body["from"]["id"], "toType": "thing", "toId": body["to"]["id"]}
                caller.send("DELETE", path + "?" + urllib.parse.urlencode(ends))
                return answer
        elif path == "/v1/events" and body["type"] == "order.paid":
            if mine == 0 and self.once("an event is delivered twice"):
                caller.send(method, path, {**body, "id": body["id"] + "-lie"}, headers)
            if mine == 1 and self.once("an event is acknowledged and lost"):
                return 202, {"event": str(uuid.uuid4()), "created": True}
        elif path == "/v1/flows/resume" and key.endswith("-other"):
            answer = caller.send(method, path, body, headers)
            if answer[0] == 410 and self.once("a token is accepted twice"):
                return 200, {"status": "completed"}
            return answer
        elif path == "/v1/data" and self.once("a change is half applied"):
            return caller.send(method, path, {"changes": body["changes"][:1]}, headers)
        return None


class World:
    def __init__(self, options):
        self.options, self.findings = options, Findings()
        self.liar = Liar() if options.plant else None
        self.is_over, self.repeated, self.retried, self.kills = False, 0, 0, collections.Counter()
        self.folder = tempfile.mkdtemp(prefix="stepwell-oracle-")
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.database = Database(options.bench, self.log) if options.store == "postgres" else None
        self.settings = {"STEPWELL_ENGINE__LEASE": f"PT{LEASE:.0f}S", "STEPWELL_FLOWS__KEY_FILE": "flow.keys", "STEPWELL_LOG__FILTER": "warn",
                         "STEPWELL_SERVER__REQUESTS_PER_SECOND": "0"}
        if self.database:
            self.settings.update(self.database.settings())
        else:
            self.settings["STEPWELL_DATABASE__URL"] = "sqlite:oracle.sqlite"
        with open(os.path.join(self.folder, "flow.keys"), "w") as keys:
            keys.write("one:" + base64.urlsafe_b64encode(os.urandom(32)).decode() + "\n")
        self.tenants = [Tenant(self, "one", made_key(options.stepwell, self.folder, self.settings))]
        count = 2 if self.database else 1
        self.servers = [Server(options.stepwell, self.folder, self.settings, self.log) for _ in range(count)]

    def begin(self):
        for server in self.servers:
            server.start()
        caller = Caller(self, 996, self.tenants[0].key)
        permissions = [f"workflow:{name}" for name in ("view", "read", "manage", "publish")]
        made = caller.do("no tenant", "POST", "/v1/tenants", {"name": "two", "key": {"name": "client", "permissions": permissions}})
        if not made:
            raise SystemExit(self.findings.told[-1])
        self.tenants.append(Tenant(self, "two", made["key"]["secret"]))
        for tenant in self.tenants:
            tenant.begin()

    @property
    def clients(self):
        return [client for tenant in self.tenants for client in tenant.clients]

    def hurt(self, chance, number):
        """Disturbs one process; the first disturbances use each way once."""
        server = chance.choice(self.servers)
        ways = {"killed": 10, "stopped": 2, **({"session": 3, "database": 2} if self.database else {})}
        how = chance.choices(list(ways), list(ways.values()))[0] if number >= len(ways) else list(ways)[number]
        if how == "killed":
            server.kill()
            time.sleep(chance.random() * 0.3)
            server.start()
        elif how == "stopped":
            server.send(signal.SIGSTOP)
            time.sleep(LEASE + 0.5)
            server.send(signal.SIGCONT)
        elif how == "session":
            self.database.order("end one")
        else:
            self.database.order("kill")
        self.kills[how] += 1

    def hurt_all(self):
        chance = random.Random(self.options.seed)
        for number in range(self.options.kills):
            time.sleep(0.1 + chance.random() * 0.5)
            self.hurt(chance, number)
            if not self.options.json:
                print(f"{number + 1} of {self.options.kills}: {dict(self.kills)}", file=sys.stderr)
        # Wait until every lie has been used.
        until = time.monotonic() + PATIENCE
        rest = {"a schedule misses a firing"}
        while self.liar and self.liar.left - rest and time.monotonic() < until:
            time.sleep(0.1)
        if self.liar and self.liar.once("a schedule misses a firing"):
            caller = Caller(self, 998, self.tenants[0].key)
            caller.send("DELETE", "/v1/schedules/tick")
            time.sleep(2)
            caller.send("PUT", "/v1/schedules/tick", SCHEDULE)
        time.sleep(0.5)
        self.is_over = True
        for client in self.clients:
            client.join(PATIENCE * 2)
            if client.is_alive():
                raise SystemExit(f"client {client.number} did not end")
            if client.failed:
                raise SystemExit(f"client {client.number}: {client.failed!r}")

    def end(self):
        for server in self.servers:
            server.end()
        if self.database:
            self.database.end()
        self.log.close()
        if self.options.plant or not self.findings.kinds:
            shutil.rmtree(self.folder, ignore_errors=True)


def moment(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Audit:
    """Compares the data of a tenant with the records of its clients."""

    def __init__(self, tenant):
        self.tenant, self.world, self.findings = tenant, tenant.world, tenant.world.findings
        self.caller = Caller(self.world, 997, tenant.key)
        # The audit reads the data without lies.
        self.world.liar, self.checked = None, 0

    def get(self, path):
        status, answer = self.caller.ask("GET", path)
        return answer if status == 200 else None

    def pages(self, path):
        cursor = ""
        while True:
            page = self.get(path + ("&" if "?" in path else "?") + "limit=200" + (f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""))
            yield from page["items"]
            cursor = page.get("nextCursor")
            if not cursor:
                return

    def keys(self, namespace):
        return {item["key"]: item["value"] for item in self.pages(f"/v1/kv/{namespace}")}

    def expect(self, kind, is_right, what):
        self.checked += 1
        if not is_right:
            self.findings.add(kind, what)

    def retried(self):
        """Retries runs that failed because their process was killed too often in the same step. Any other failure is a finding."""
        crashed = [run["id"] for name in WORKFLOWS for run in self.pages(f"/v1/runs?workflow={name}&status=failed")]
        for run in crashed:
            error = (self.get(f"/v1/runs/{run}") or {}).get("error") or {}
            if error.get("code") == "crashed":
                self.world.retried += 1
                self.caller.do("retry refused", "POST", f"/v1/runs/{run}/retry")
            else:
                self.findings.add("run failed", f"{run}: {error}")
        return bool(crashed)

    def settled(self):
        """Waits until no run is active, up to a time limit. A run that is still active then causes a finding later."""
        until = time.monotonic() + (PATIENCE if not self.world.options.plant else 4)
        while time.monotonic() < until:
            if self.retried():
                continue
            going = [run for name in WORKFLOWS for run in self.pages(f"/v1/runs?workflow={name}&status=running")]
            going += [run for name in ("bell", "parcel", "form") for run in self.pages(f"/v1/runs?workflow={name}&status=waiting")]
            if not going:
                return
            time.sleep(0.2)

    def schedule(self):
        shown = self.get("/v1/schedules/tick")
        due = round(moment(shown["nextFirings"][0]) - self.tenant.first_firing)
        self.expect("firing missing", shown["fired"] >= due, f"{due} firings were due, {shown['fired']} happened")
        self.expect("firing twice", shown["fired"] <= due, f"{due} firings were due, {shown['fired']} happened")
        self.caller.do("schedule refused", "DELETE", "/v1/schedules/tick")

    def ticks(self):
        fired, counted = self.get("/v1/schedules/tick")["fired"], self.keys("ticks").get("all", 0)
        runs = sum(1 for _ in self.pages("/v1/runs?workflow=tick"))
        self.expect("firing lost", runs == fired == counted, f"{fired} firings, {runs} runs, {counted} counted")

    def run(self):
        self.schedule()
        self.settled()
        self.ticks()
        clients = self.tenant.clients
        books = [client.books for client in clients]
        self.bells(books)
        self.counts("event", self.keys("orders"), {order for book in books for order in book.orders})
        self.counts("parcel", self.keys("parcels"), {parcel for book in books for parcel in book.parcels})
        self.forms(books)
        self.registers(clients)
        self.links(clients)

    def counts(self, kind, found, wanted):
        """Checks that each name was counted once, and no other was."""
        for name in wanted:
            self.expect(f"{kind} lost", found.get(name, 0) >= 1, name)
            self.expect(f"{kind} twice", found.get(name, 0) <= 1, f"{name}: {found.get(name)} times")
        for name in set(found) - wanted:
            self.findings.add(f"{kind} too many", name)

    def bells(self, books):
        known, signalled = {}, {}
        for book in books:
            known.update(book.bells)
            signalled.update({bell[0]: bell for bell in book.bells.values() if bell[2] is not None})
        runs = {run["id"]: run for run in self.pages("/v1/runs?workflow=bell")}
        for run in set(runs) - set(known) - {extra for book in books for extra in book.extra}:
            self.findings.add("run too many", run)
        for run, (name, _, brought) in known.items():
            if run not in runs:
                self.expect("start lost", False, f"{name} {run}")
            elif brought is not None:
                shown = self.get(f"/v1/runs/{run}")
                ended = shown["status"] == "completed"
                self.expect("signal lost", ended, f"{name}: {shown['status']} {shown.get('error')}")
                self.expect("signal changed", not ended or shown["result"] == brought, f"{name}: got {shown.get('result')}, expected {brought}")
        rung = self.keys("rung")
        for name, count in rung.items():
            self.expect("ring twice", count == 1 and name in signalled, f"{name}: {count}")

    def forms(self, books):
        known = {flow: form for book in books for flow, form in book.forms.items()}
        self.counts("form", self.keys("forms"), {name for name, _ in known.values()})
        for flow, (name, answered) in known.items():
            shown = self.get(f"/v1/runs/{flow}") or {}
            self.expect("flow lost", shown.get("result") == answered, f"{name}: {shown.get('status')} {shown.get('result')}")

    def registers(self, clients):
        own, counts, left, right = (self.keys(name) for name in ("own", "counts", "left", "right"))
        for client in clients:
            name, book = f"client-{client.number}", client.books
            self.expect("write lost", own.get(name) == (book.value or (None,))[0], f"{name}: got {own.get(name)}, expected {book.value}")
            count = counts.get(name, 0)
            self.expect("counted too often", count <= book.counted, f"{name}: got {count}, expected {book.counted}")
            self.expect("counted too rarely", count >= book.counted, f"{name}: got {count}, expected {book.counted}")
            both = (left.get(name, 0), right.get(name, 0))
            self.expect("change torn", both[0] == both[1], f"{name}: {both}")
            self.expect("change lost", book.changed in both, f"{name}: got {both}, expected {book.changed}")
        wins = {}
        for client in clients:
            for place, value in client.books.wins.items():
                self.expect("two winners", place not in wins, f"{place}: {value} and {wins.get(place)}")
                wins[place] = value
        for item in self.pages("/v1/kv/shared"):
            number, revision = int(item["key"].rsplit("-", 1)[1]), item["revision"]
            mine = {place: value for place, value in wins.items() if place[0] == number}
            self.expect("win lost", len(mine) == revision, f"{item['key']}: {revision} writes, {len(mine)} winners")
            self.expect("win lost", mine.get((number, revision)) == item["value"], f"{item['key']}: {item}")

    def links(self, clients):
        found = {(link["from"]["id"], link["to"]["id"]) for link in self.pages("/v1/links/oracle")}
        wanted = {(str(client.number), one) for client in clients for one in client.books.links}
        self.checked += len(wanted)
        for link in wanted - found:
            self.findings.add("link lost", str(link))
        for link in found - wanted:
            self.findings.add("link too many", str(link))


def options():
    parser = argparse.ArgumentParser(description="Kills and stops servers under load, and checks every acknowledged effect.")
    parser.add_argument("--stepwell", required=True, help="path of the program `stepwell`")
    parser.add_argument("--bench", required=True, help="path of the program `stepwell-bench`, which runs PostgreSQL")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--kills", type=int, default=100, help="number of kills, stops and other disturbances")
    parser.add_argument("--clients", type=int, default=4, help="number of clients of each tenant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", action="store_true", help="falsify requests and answers; each falsification must be detected")
    parser.add_argument("--json", action="store_true", help="print the JSON result only")
    given = parser.parse_args()
    given.stepwell, given.bench = os.path.abspath(given.stepwell), os.path.abspath(given.bench)
    return given


def main():
    given = options()
    began = time.monotonic()
    world = World(given)
    lies = dict(Liar.FOUND_AS) if given.plant else {}
    liar = world.liar
    try:
        world.begin()
        world.hurt_all()
        audits = [Audit(tenant) for tenant in world.tenants]
        for audit in audits:
            audit.run()
    finally:
        world.end()
    missed = sorted(lie for lie, kind in lies.items() if lie in liar.left or kind not in world.findings.kinds)
    print(json.dumps({
        "workload": "oracle", "store": given.store, "seed": given.seed, "planted": given.plant,
        "kills": sum(world.kills.values()), "killed": world.kills["killed"], "stopped": world.kills["stopped"],
        "sessions": world.kills["session"], "databases": world.kills["database"],
        "checked": sum(audit.checked for audit in audits), "repeated": world.repeated, "retried": world.retried, "rounds": sum(client.round for client in world.clients),
        "lies": len(lies), "missed": missed, "findings": sum(world.findings.kinds.values()),
        "seconds": round(time.monotonic() - began, 1),
    }))
    for told in world.findings.told:
        print(told, file=sys.stderr)
    if given.plant:
        return 1 if missed else 0
    return 1 if world.findings.kinds else 0


if __name__ == "__main__":
    sys.exit(main())
