"""Two tenants of one server use the same ids, names and keys at the same time. Neither may notice the other.

Both run the script of `neighbour.py` in several lanes at once. The two tenants of a lane send each request at the same moment.
Before that, each tenant has run the script alone on a server of its own: those answers are the expected ones. Every answer must
equal them, and no answer may contain a value of the other tenant. Every operation of the API contract must have been called.

Then some operations (`--plants`) are sent with the key of the other tenant, one in each lane. Each of these must be detected.

Uses the Python standard library only.
"""

import argparse
import base64
import collections
import hashlib
import http.client
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.parse

from neighbour import Neighbour, Stuck, quoted
from served import Database, Server, made_key

# Marks and numbers of the tenants. They are as long as one another, so that sizes do not differ.
TENANTS = {
    "ada": {"mark": "adaQ7x1", "base": 41_000_000, "secret": b"hook of ada 1815", "id": "0a0a0a0a-0000-4000-8000-00000000000a"},
    "bob": {"mark": "bobZ4k9", "base": 43_000_000, "secret": b"hook of bob 1956", "id": "0b0b0b0b-0000-4000-8000-00000000000b"},
}
# The tenant that first runs the script alone.
REFERENCE = "ada"
# Kinds of answers that are compared in any order.
SORTED = ("own", "all")
# Operations that need not be called, each with the reason.
EXCEPTIONS = {
    "docs": "a page without data",
    "home": "a page without data",
    "live": "says only that the process is alive",
    "ready": "says only that the store answers",
    "contract": "the contract itself, which the proof reads",
    "version": "name and version of the program",
}
# Operations whose answer does not depend on the tenant, so that a request with another tenant's key changes nothing.
STATELESS = {
    "validateDocument", "simulateDocument", "testDocument", "evaluateExpression", "listSealingKeys", "metrics",
    "listTenants", "createTenant", "showTenant", "updateTenant", "createTenantApiKey", "deleteTenant",
    # These find the tenant by the token or the path, not by the key of the caller.
    "resumeFlow", "showFlow", "showLink", "answerLink", "failLink", "heartbeatLink", "callHook",
}
# Operations that the script calls once for the whole tenant, with the same answer for both.
AT_THE_END = {"cleanUp", "cleanUpHandles", "verifyAudit", "listAuditSeals", "diagnose"}
# Generated ids: UUIDs, ids of API keys, and hashes.
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{64}\b|\b[0-9a-f]{16}\b")
SPAN = re.compile(r"\bPT[\d.]+S\b")
TOKEN = re.compile(r"\b(sealed|handle|durable)\.[\w.-]{20,}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z|\d{4}-\d\d-\d\d \d\d:\d\d UTC")
# Fields with random or timed values.
UNSTABLE = {"token", "secret", "traceId", "durationUs", "scanned", "host", "webhook-timestamp"}
# Fields that a run has while a process works on it.
PASSING = {"owner", "wakeAt"}
PERMISSIONS = [f"workflow:{name}" for name in ("view", "read", "manage", "publish", "admin")] + ["worker:*"]


# Number of lanes with a planted request at the same time.
AT_ONCE = 12


class Different(Exception):
    """The answer to a request is not the expected one."""


def difference(got, expected, at=""):
    """Returns the place of the first difference of two values, and both values there."""
    if isinstance(got, dict) and isinstance(expected, dict):
        found = [difference(got.get(key, "<absent>"), expected.get(key, "<absent>"), f"{at}/{key}") for key in sorted({*got, *expected})]
        return next((one for one in found if one), None)
    if isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        found = [difference(one, other, f"{at}/{number}") for number, (one, other) in enumerate(zip(got, expected))]
        return next((one for one in found if one), None)
    return None if got == expected else f"at `{at}`: got {json.dumps(got)[:300]}, expected {json.dumps(expected)[:300]}"


class Findings:
    """The detected problems."""

    def __init__(self):
        self.lock, self.count, self.told = threading.Lock(), 0, []

    def add(self, what):
        with self.lock:
            self.count += 1
            if len(self.told) < 8:
                self.told.append(what)


class Ask:
    """Sends the requests of one lane of one tenant and compares or records their answers."""

    def __init__(self, side, tag, barrier=None, expected=None, swapped=None):
        self.side, self.tag, self.barrier, self.expected, self.swapped = side, tag, barrier, expected, swapped
        self.address = side.server.address
        self.connection, self.recorded, self.ids = None, [], {}
        # A planted request may leave the script waiting for something that does not happen.
        self.patience = 10.0 if swapped else 60.0

    def __call__(self, operation, path=None, query=None, body=None, headers=None, kind=None, once=None, match=None, want=(200, 201, 202, 204), keep=None, mine=False):
        """Sends a request whose answer is compared. `mine` keeps the items of a list that belong to this lane."""
        sent = dict(headers or {})
        if once:
            sent["Idempotency-Key"] = once
        if match is not None:
            sent["If-Match"] = f'"{match}"'
        if self.barrier:
            self.barrier.wait(90)
        is_swapped, self.swapped = self.swapped == operation, None if self.swapped == operation else self.swapped
        while True:
            status, answer = self.send(operation, path, query, body, sent, kind, is_swapped)
            if status not in (429, 503):
                break
            # The server limits the number of concurrent simulations.
            time.sleep(0.02)
        if mine and status == 200:
            self.compare([operation, "own", self.sorted(self.own(self.rest(operation, query, answer)))], True)
        else:
            shown = keep(answer) if keep and status < 300 else answer
            self.compare([operation, status, self.plain(shown, self.ids)], status in want)
        return answer

    def compare(self, entry, is_wanted):
        number = len(self.recorded)
        self.recorded.append(entry)
        if self.expected is None:
            if not is_wanted:
                raise Different(f"{self.side.name} {self.tag} alone: {entry}")
            return
        expected = self.expected[number] if number < len(self.expected) else None
        # What is compared has been through JSON, in which tuples are lists.
        found = difference(json.loads(json.dumps(entry)), json.loads(json.dumps(expected)))
        if found:
            raise Different(f"{self.side.name} {self.tag}, request {number}, {entry[0]}: {found}")

    def quietly(self, operation, path=None, query=None):
        """Sends a request whose answer is not compared, but searched for values of the other tenant."""
        return self.send(operation, path, query, None, {}, None, False)[1]

    def all(self, operation, without=None):
        """Compares all items of a list, in any order, except those that contain the text `without`."""
        query = {"limit": 200} if self.side.contract.takes(operation, "limit") else {}
        page = self.quietly(operation, query=query)
        items = [item for item in self.rest(operation, query, page) if not without or without not in json.dumps(item)]
        self.compare([operation, "all", self.sorted(items)], True)

    def rest(self, operation, query, page):
        """Returns the items of a page and of all further pages."""
        items = list(page["items"])
        while page.get("nextCursor"):
            page = self.quietly(operation, query={**(query or {}), "cursor": page["nextCursor"]})
            items += page["items"]
        return items

    def sorted(self, items):
        return sorted(json.dumps(self.plain(item, None), sort_keys=True) for item in items)

    def own(self, items):
        return [item for item in items if self.tag in (text := json.dumps(item)) or any(id in text for id in self.ids)]

    def plain(self, value, ids):
        """Replaces what differs between two equal executions: generated ids, times, secrets."""
        if isinstance(value, dict):
            return {key: "<unstable>" if key in UNSTABLE else self.plain(inner, ids) for key, inner in value.items() if key not in PASSING}
        if isinstance(value, list):
            return [self.plain(inner, ids) for inner in value]
        if not isinstance(value, str):
            return value
        value = SPAN.sub("<span>", TOKEN.sub("<token>", TIME.sub("<time>", value)))
        return ID.sub(lambda found: "<id>" if ids is None else ids.setdefault(found[0], f"<id {len(ids)}>"), value)

    def send(self, operation, path, query, body, headers, kind, is_swapped):
        method, target = self.side.contract.target(operation, path or {}, query or {})
        sent = {"Authorization": "Bearer " + self.side.key_of(is_swapped), **headers}
        if body is not None:
            sent["Content-Type"] = kind or "application/json"
            body = body if isinstance(body, str) else json.dumps(body)
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.address, timeout=60)
        self.connection.request(method, target, body.encode() if body else None, sent)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status >= 400 and body:
            # The server may answer before it has read the body, and then closes the connection.
            self.connection.close()
            self.connection = None
        self.side.answered(operation, answer.status, f"{method} {target}", data)
        try:
            return answer.status, json.loads(data) if data else None
        except ValueError:
            return answer.status, data.decode(errors="replace")

    def stream(self, operation, path):
        if self.barrier:
            self.barrier.wait(90)
        is_swapped, self.swapped = self.swapped == operation, None if self.swapped == operation else self.swapped
        return Stream(self, operation, path, is_swapped)


class Stream:
    """Server-sent events of one request, which are compared when the stream is closed."""

    def __init__(self, ask, operation, path, is_swapped):
        self.ask, self.operation, self.events = ask, operation, []
        method, self.target = ask.side.contract.target(operation, path, {})
        self.connection = http.client.HTTPConnection(ask.address, timeout=60)
        self.connection.request(method, self.target, headers={"Authorization": "Bearer " + ask.side.key_of(is_swapped), "Accept": "text/event-stream"})
        self.answer = self.connection.getresponse()
        if self.answer.status != 200:
            ask.side.answered(operation, self.answer.status, self.target, self.answer.read())
            raise Different(f"{ask.side.name} {ask.tag}: {operation} got {self.answer.status}")

    def __enter__(self):
        return self

    def next(self):
        """Returns id and data of the next event that has an id, or `None` at the end of the stream."""
        event = {}
        while line := self.answer.readline():
            field, _, text = line.decode().rstrip("\r\n").partition(":")
            if field:
                event[field] = text.strip()
            elif "id" in event:
                self.ask.side.answered(self.operation, 200, self.target, event["data"].encode())
                return {"id": event["id"], "data": json.loads(event["data"])}
            else:
                event = {}
        return None

    def until(self, text):
        while event := self.next():
            self.events.append(event)
            if text in json.dumps(event):
                return
        raise Different(f"{self.ask.side.name} {self.ask.tag}: {self.operation} ended without {text}")

    def rest(self):
        while event := self.next():
            self.events.append(event)

    def __exit__(self, kind, *_):
        self.connection.close()
        if kind is None:
            self.ask.compare([self.operation, "events", self.ask.plain(self.events, self.ask.ids)], True)


class Contract:
    """The operations of the API contract."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            contract = json.load(file)
        self.operations = {}
        for path, methods in contract["paths"].items():
            for method, operation in methods.items():
                if "operationId" in operation:
                    names = {parameter["name"] for parameter in operation.get("parameters", [])}
                    self.operations[operation["operationId"]] = (method.upper(), path, names)

    def takes(self, operation, parameter):
        return parameter in self.operations[operation][2]

    def target(self, operation, path, query):
        method, template, _ = self.operations[operation]
        target = re.sub(r"\{(\w+)\}", lambda name: quoted(path[name[1]]) if name[1] != "path" else path["path"], template)
        return method, target + ("?" + urllib.parse.urlencode(query) if query else "")


class Side:
    """One tenant on one server."""

    def __init__(self, place, name):
        self.place, self.name, self.server, self.contract = place, name, place.server, place.contract
        self.other = next(other for other in TENANTS if other != name)
        self.called, self.succeeded, self.requests, self.lock = collections.Counter(), set(), 0, threading.Lock()
        other = TENANTS[self.other]
        self.foreign = re.compile(f"{other['mark']}|{other['id']}|\\b{start_of(self.other)}\\d\\d\\b".encode())

    def key_of(self, is_swapped):
        return self.place.keys[self.other if is_swapped else self.name]

    def answered(self, operation, status, what, data):
        with self.lock:
            self.called[operation] += 1
            self.requests += 1
            if status < 300:
                self.succeeded.add(operation)
        if found := self.foreign.search(data):
            raise Different(f"{self.name}: {what} returned {found[0].decode()} of {self.other}: {data[:300]!r}")

    def neighbour(self, ask, tag):
        own = TENANTS[self.name]
        return Neighbour(ask, tag, own["mark"], own["base"], own["id"], own["secret"])


class Place:
    """A server with the tenants that share it."""

    def __init__(self, options, contract, names, database=None, program=None):
        self.contract, self.folder = contract, tempfile.mkdtemp(prefix="stepwell-tenants-")
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.database = Database(options.bench, self.log) if database == "postgres" else None
        self.settings = {
            "STEPWELL_FLOWS__KEY_FILE": "flow.keys", "STEPWELL_SECRETS__FOLDER": "secrets", "STEPWELL_LOG__FILTER": "warn",
            "STEPWELL_SERVER__REQUESTS_PER_SECOND": "0", "STEPWELL_SERVER__ANONYMOUS_REQUESTS_PER_SECOND": "0",
            **(self.database.settings() if self.database else {"STEPWELL_DATABASE__URL": "sqlite:tenants.sqlite"}),
        }
        with open(os.path.join(self.folder, "flow.keys"), "w") as keys:
            keys.write("one:" + base64.urlsafe_b64encode(bytes(range(32))).decode() + "\n")
        for name in names:
            folder = os.path.join(self.folder, "secrets", TENANTS[name]["id"])
            os.makedirs(folder)
            with open(os.path.join(folder, "HOOK"), "wb") as file:
                file.write(b"whsec_" + base64.b64encode(TENANTS[name]["secret"]))
        host = made_key(options.stepwell, self.folder, self.settings, ("view", "read", "manage", "publish", "admin", "worker:*"))
        self.server = Server(options.stepwell, self.folder, self.settings, self.log, program)
        self.server.start()
        self.keys = {name: self.tenant(host, name) for name in names}
        self.sides = {name: Side(self, name) for name in names}

    def tenant(self, host, name):
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        body = {"id": TENANTS[name]["id"], "name": name, "key": {"name": "all", "permissions": PERMISSIONS}}
        connection.request("POST", "/v1/tenants", json.dumps(body), {"Authorization": "Bearer " + host, "Content-Type": "application/json"})
        answer = connection.getresponse()
        made = json.loads(answer.read())
        if answer.status != 201:
            raise SystemExit(f"cannot create the tenant: {made}")
        return made["key"]["secret"]

    def end(self):
        self.server.end()
        if self.database:
            self.database.end()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def tag_of(lane):
    """Returns the tag of a lane. Tags are so different that no error suggests a name of another lane."""
    return "l" + hashlib.sha256(str(lane).encode()).hexdigest()[:9]


class Part(threading.Thread):
    """The script of one tenant in one lane."""

    def __init__(self, ask, work):
        super().__init__(daemon=True)
        self.ask, self.work, self.failed = ask, work, None

    def run(self):
        try:
            self.work()
            if self.ask.expected is not None and len(self.ask.recorded) != len(self.ask.expected):
                raise Different(f"{self.ask.side.name} {self.ask.tag}: {len(self.ask.recorded)} answers instead of {len(self.ask.expected)}")
        except threading.BrokenBarrierError:
            # The other tenant of this lane has ended with a problem, which it reports.
            pass
        except BaseException as error:
            self.failed = error
        if self.failed and self.ask.barrier:
            self.ask.barrier.abort()


def all_of(parts):
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    return [part for part in parts if part.failed]


def alone(options, contract, lanes):
    """Runs the script of one tenant on a server of its own. Returns its answers by lane."""
    place = Place(options, contract, [REFERENCE])
    try:
        side = place.sides[REFERENCE]
        asks = {tag: Ask(side, tag) for tag in [*map(tag_of, range(lanes)), "close"]}
        failed = all_of([Part(ask, side.neighbour(ask, tag).run) for tag, ask in asks.items() if tag != "close"])
        failed = failed or all_of([Part(asks["close"], side.neighbour(asks["close"], "close").close)])
        if failed:
            raise SystemExit(f"the script fails for a single tenant: {failed[0].failed!r}")
        return {tag: ask.recorded for tag, ask in asks.items()}
    finally:
        place.end()


def start_of(name, factor=1):
    """Returns the digits that a tenant's numbers begin with. Two more digits follow."""
    return str(TENANTS[name]["base"] * factor)[:-2]


def expected_of(recorded, name, tag, other_tag=None):
    """Returns the answers that a tenant must get in a lane: those of the reference with the tenant's own values."""
    text = json.dumps(recorded).replace(tag, other_tag or tag)
    # Titles of pages begin with a capital.
    text = text.replace(tag.capitalize(), (other_tag or tag).capitalize())
    for field in ("mark", "id"):
        text = text.replace(TENANTS[REFERENCE][field], TENANTS[name][field])
    for factor in (1, 2):
        text = re.sub(rf"\b{start_of(REFERENCE, factor)}(?=\d\d\b)", start_of(name, factor), text)
    return [[operation, kind, sorted(shown) if kind in SORTED else shown] for operation, kind, shown in json.loads(text)]


def together(options, contract, recorded, lanes, store, findings):
    """Runs the scripts of both tenants at the same time on one server."""
    place = Place(options, contract, list(TENANTS), store, options.program)
    try:
        stages = [[tag_of(lane) for lane in range(lanes)], ["close"]]
        for tags in stages:
            parts = []
            for tag in tags:
                barrier = threading.Barrier(len(TENANTS)) if tag != "close" else None
                for side in place.sides.values():
                    ask = Ask(side, tag, barrier, expected_of(recorded[tag], side.name, tag))
                    script = side.neighbour(ask, tag)
                    parts.append(Part(ask, script.close if tag == "close" else script.run))
            for part in all_of(parts):
                findings.add(f"{store}: {part.failed}" if isinstance(part.failed, (Different, Stuck)) else f"{store}: {part.failed!r}")
            if findings.count:
                break
        called = {operation for side in place.sides.values() for operation in side.called}
        for side in place.sides.values():
            # The metrics belong to the host, and a bulk command of a few runs has ended before it could be cancelled.
            refused = set(side.called) - side.succeeded - {"metrics", "cancelBulk"} - {name for name in STATELESS if "enant" in name}
            for operation in sorted(refused) if not findings.count else []:
                findings.add(f"{store}: `{operation}` was refused every time, so it shows nothing")
        return called, sum(side.requests for side in place.sides.values())
    finally:
        place.end()


def planted(options, contract, recorded):
    """Sends one request of each lane with the key of the other tenant. Returns the operations and those that were not found."""
    operations = sorted(set(contract.operations) - set(EXCEPTIONS) - STATELESS - AT_THE_END)
    if options.plants:
        operations = random.Random(7).sample(operations, min(options.plants, len(operations)))
    first, missed, waiting = tag_of(0), [], list(operations)
    while waiting:
        batch, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
        place = Place(options, contract, list(TENANTS))
        try:
            parts = []
            for lane, operation in enumerate(batch):
                tag, barrier = tag_of(lane), threading.Barrier(len(TENANTS))
                for index, side in enumerate(place.sides.values()):
                    ask = Ask(side, tag, barrier, expected_of(recorded[first], side.name, first, tag), operation if index == lane % 2 else None)
                    parts.append((operation, Part(ask, side.neighbour(ask, tag).run)))
            all_of([part for _, part in parts])
            found = {operation for operation, part in parts if isinstance(part.failed, (Different, Stuck))}
            missed += [operation for operation in batch if operation not in found]
        finally:
            place.end()
    return operations, missed


def options():
    parser = argparse.ArgumentParser(description="Lets two tenants use the same ids, names and keys; neither may notice the other.")
    parser.add_argument("--stepwell", required=True, help="path of the program `stepwell`")
    parser.add_argument("--bench", required=True, help="path of the program `stepwell-bench`, which runs PostgreSQL")
    parser.add_argument("--contract", required=True, help="path of the API contract")
    parser.add_argument("--lanes", type=int, default=8,  help="number of scripts that each tenant runs at the same time")
    parser.add_argument("--store", action="append", choices=["sqlite", "postgres"], help="databases (default: both)")
    parser.add_argument("--program", help="server to test instead of `stepwell`, for example one with a planted fault")
    parser.add_argument("--plants", type=int, default=0, help="number of requests to send with the other tenant's key; each must be detected")
    parser.add_argument("--json", action="store_true", help="print the JSON result only")
    given = parser.parse_args()
    given.stepwell, given.bench = os.path.abspath(given.stepwell), os.path.abspath(given.bench)
    return given


def main():
    given = options()
    began, contract, findings = time.monotonic(), Contract(given.contract), Findings()
    recorded = alone(given, contract, given.lanes)
    stores, requests, uncalled = given.store or ["sqlite", "postgres"], [], set()

    def one(store):
        called, sent = together(given, contract, recorded, given.lanes, store, findings)
        requests.append(sent)
        if not findings.count:
            uncalled.update(set(contract.operations) - set(EXCEPTIONS) - called)

    threads = [threading.Thread(target=one, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(requests) < len(stores):
        raise SystemExit("the server failed: see above")
    operations, missed = planted(given, contract, recorded) if given.plants else ([], [])
    line = {
        "workload": "tenants", "stores": len(stores), "lanes": given.lanes, "operations": len(contract.operations), "exceptions": len(EXCEPTIONS),
        "requests": sum(requests), "compared": sum(map(len, recorded.values())) * len(stores) * len(TENANTS),
        "uncalled": sorted(uncalled), "findings": findings.count, "plants": len(operations), "missed": missed,
    }
    print(json.dumps({**line, "seconds": round(time.monotonic() - began, 1)}))
    for told in findings.told:
        print(told[:1500], file=sys.stderr)
    return 1 if findings.count or missed or uncalled else 0


if __name__ == "__main__":
    sys.exit(main())
