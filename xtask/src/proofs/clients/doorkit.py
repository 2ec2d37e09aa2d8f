"""Ways into a server: the same operation as an HTTP request and as a command, and checks of promises that use them.

The contract `openapi.json` says how an operation is sent over HTTP, and the reference of the command line how it is written as a
command. So a check of a promise is written once and runs through each door.
"""

import collections
import http.client
import itertools
import json
import os
import re
import subprocess
import threading
import time
import urllib.parse

from served import environment

# The exit code of the command line for each HTTP status.
EXITS = {400: 6, 401: 5, 403: 5, 404: 3, 408: 8, 409: 4, 410: 3, 412: 4, 413: 6, 415: 6, 422: 6, 428: 4, 429: 1, 503: 9}
HEADERS = {"Idempotency-Key": "key", "If-Match": "match", "If-None-Match": "createOnly"}
# Verbs that are more than one operation, with the operation that they stand for.
VERBS = {
    "emitEvents": "event emit", "resumeFlow": "token resume", "showFlow": "token show", "validateDocument": "workflow validate",
    "diagnose": "doctor", "cleanUp": "maintenance cleanup", "healColumns": "maintenance heal",
}


class Failed(Exception):
    """A check whose promise does not hold."""


def expect(condition, what):
    if not condition:
        raise Failed(what)


def same(found, wanted, what="the result"):
    if found != wanted:
        raise Failed(f"{what} is {json.dumps(found, default=repr)[:600]}, expected {json.dumps(wanted, default=repr)[:600]}")


Operation = collections.namedtuple("Operation", "name method path parameters fields raw")


def operations(contract):
    """Returns the operations of the contract by id."""

    def resolved(value):
        while isinstance(value, dict) and "$ref" in value:
            found = contract
            for part in value["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            value = found
        return value

    found = {}
    for path, methods in contract["paths"].items():
        for method, operation in methods.items():
            parameters = {one["name"]: one["in"] for one in map(resolved, operation.get("parameters", []))}
            body = resolved(operation.get("requestBody") or {}).get("content", {})
            schema = resolved(next(iter(body.values()), {}).get("schema", {}))
            fields = set(schema.get("properties", {})) if "application/json" in body else set()
            found[operation["operationId"]] = Operation(operation["operationId"], method.upper(), path, parameters, fields, sorted(body))
    return found


Argument = collections.namedtuple("Argument", "name positional kind")


def commands(reference):
    """Returns the arguments of each verb in the reference of the command line, and the verb of each request."""
    verbs, requests = {}, {}
    for noun in re.split(r"^## ", reference, flags=re.M)[1:]:
        heading = noun.split("\n", 1)[0]
        for text in re.split(r"^### ", noun, flags=re.M):
            verb = text.split("\n", 1)[0]
            rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", text, flags=re.M)
            verbs[verb] = [Argument(name.split(" ")[-1] if name.startswith("-") else name, not name.startswith("-"), kind.strip()) for name, kind in rows]
            for method, path in re.findall(r"^Request: (\w+) (\S+)$", text, flags=re.M):
                requests.setdefault((method, path), verb)
        verbs.setdefault(heading, [])
    return verbs, requests


def kebab(name):
    return re.sub(r"([A-Z])", lambda found: "-" + found.group(1).lower(), name)


class Reply:
    """The answer of an operation. `status` is an HTTP status or an exit code."""

    def __init__(self, status, text, refused, value=None, headers=None):
        self.status, self.text, self.refused, self.value, self.headers = status, text, refused, value, headers or {}

    def __repr__(self):
        return f"{self.status}: {self.text[:600]}"


class Http:
    """Sends operations as HTTP requests."""

    name = "http"

    def __init__(self, world):
        self.world = world

    def expected(self, status):
        return status

    def send(self, operation, arguments, document, key):
        path, query, headers, body = operation.path, [], {"Authorization": "Bearer " + key}, {}
        for name, value in arguments.items():
            header = {own: name for name, own in HEADERS.items()}.get(name)
            where = operation.parameters.get(name)
            if where == "path":
                path = path.replace("{%s}" % name, urllib.parse.quote(str(value), safe=""))
            elif where == "query":
                values = value if isinstance(value, list) else [value]
                query += [(name, str(value).lower() if isinstance(value, bool) else str(value)) for value in values]
            elif header and header in operation.parameters:
                headers[header] = {"match": f'"{value}"', "createOnly": "*"}.get(name, str(value))
            elif name == "body" or name in operation.fields:
                body[name] = value
            else:
                raise Failed(f"`{operation.name}` has no argument `{name}`")
        data = None
        if document is not None:
            data, headers["Content-Type"] = document.encode(), "application/yaml"
        elif "body" in body or body:
            data = json.dumps(body["body"] if "body" in body and "body" not in operation.fields else body).encode()
            headers["Content-Type"] = "application/json"
        return self.request(operation.method, path + ("?" + urllib.parse.urlencode(query) if query else ""), data, headers)

    def request(self, method, path, data=None, headers=None):
        """Sends any request, also one that is no operation of the contract."""
        connection = http.client.HTTPConnection(self.world.server.address, timeout=60)
        try:
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            text = answer.read().decode()
            kind = answer.headers.get("Content-Type", "")
            value = json.loads(text) if "json" in kind and text else None
            return Reply(answer.status, text, answer.status >= 400, value, dict(answer.headers))
        finally:
            connection.close()

    def detail(self, reply):
        return (reply.value or {}).get("detail", "") + json.dumps((reply.value or {}).get("errors", ""))


class Cli:
    """Sends operations with the program's commands."""

    name = "cli"

    def __init__(self, world):
        self.world = world

    def expected(self, status):
        return EXITS[status]

    def send(self, operation, arguments, document, key):
        verbs, requests = self.world.commands
        verb = requests.get((operation.method, operation.path)) or VERBS.get(operation.name)
        if operation.name == "startBulk":
            # Each command has a verb of its own, and the conditions of the filter are arguments.
            arguments = {**arguments, **arguments.get("filter", {})}
            verb = f"bulk {arguments.pop('command')}"
            arguments.pop("filter", None)
        if not verb:
            raise Failed(f"the command line has no verb for `{operation.name}`")
        arguments, words, places = dict(arguments), [], []
        if arguments.pop("dryRun", False):
            words.append("--dry-run")
        for known in verbs[verb]:
            self.add(known, arguments, words, places, document)
        if arguments:
            raise Failed(f"`stepwell {verb}` has no argument for {sorted(arguments)}")
        return self.command([*verb.split(), *words, *places], key=key)

    def add(self, known, arguments, words, places, document):
        """Moves the argument that this one of the verb stands for to the words of the command."""
        spelled = known.name.lower().replace("_", "-") if known.positional else known.name.removeprefix("--")
        names = {"idempotency-key": "key", "if-match": "match", "create-only": "createOnly", "output-schema": "output", "json": "body"}
        found = names.get(spelled) or next((name for name in arguments if spelled in (kebab(name), kebab(name).removesuffix("s"))), None)
        if spelled == "file" and document is not None:
            return places.append(self.world.file(document))
        if found not in arguments:
            return None
        value = arguments.pop(found)
        is_json = known.kind == "json" or found == "body"
        written = lambda value: value if isinstance(value, str) and not is_json else self.as_json(value)
        if known.positional:
            several = isinstance(value, list) and not is_json
            return places.extend(map(written, value if several else [value]))
        if known.kind == "flag":
            return words.append(known.name) if value else None
        for one in value if isinstance(value, list) and known.kind != "json" else [value]:
            words.append(f"{known.name}={written(one)}")
        return None

    def as_json(self, value):
        """Returns a JSON argument. What is too long for an argument goes into a file."""
        text = json.dumps(value)
        return text if len(text) < 100_000 else "@" + self.world.file(text)

    def command(self, words, key=None, json_output=True, seconds=60):
        """Runs any command against the server."""
        own = {"STEPWELL_SERVER": "http://" + self.world.server.address, "STEPWELL_API_KEY": key or self.world.key}
        words = [self.world.program, *words, *(["--json"] if json_output else []), *(["--yes"] if json_output else [])]
        done = subprocess.run(words, cwd=self.world.folder, env=environment(own), capture_output=True, text=True, timeout=seconds)
        try:
            # With `--json`, a refusal is a problem in JSON on standard error.
            printed = done.stdout.strip() or (done.stderr.strip() if done.returncode else "")
            value = json.loads(printed) if printed else None
        except ValueError:
            value = None
        return Reply(done.returncode, done.stdout + done.stderr, done.returncode != 0, value)

    def detail(self, reply):
        return reply.text


# Every permission that a key can have.
EVERY = ["workflow:view", "workflow:read", "workflow:manage", "workflow:publish", "workflow:admin", "workflow:answer", "worker:*"]


class World:
    """A server, one door into it, and what a check needs: unique names, published workflows, started runs."""

    counter, lock = itertools.count(1), threading.Lock()

    def __init__(self, site, door):
        self.site, self.published, self.outer = site, 0, None
        self.door = door(self)

    def __getattr__(self, name):
        # The server, its key, its folder, its program and the contract are shared by all checks.
        return getattr(self.__dict__["site"], name)

    def own_tenant(self):
        """Gives the check a tenant of its own and a key with every permission, and returns the tenant's id."""
        made = self.ok("createTenant", name=self.fresh("tenant"), key={"name": "client", "permissions": EVERY})
        self.key = made["key"]["secret"]
        return made["id"]

    def other_tenant(self):
        """Returns a world in a new tenant, through the same door. What it publishes counts for this check."""
        other = World(self.site, type(self.door))
        other.key, other.outer = self.key, self
        other.id = other.own_tenant()
        return other

    def fresh(self, word):
        """Returns a name that no other check uses."""
        with World.lock:
            return f"{word}-{next(World.counter)}"

    def file(self, text):
        path = os.path.join(self.folder, self.fresh("document") + ".yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def call(self, operation, document=None, as_key=None, **arguments):
        """Sends an operation and returns the reply, which may be a refusal."""
        return self.door.send(self.operations[operation], arguments, document, as_key or self.key)

    def ok(self, operation, document=None, as_key=None, **arguments):
        """Sends an operation that must succeed, and returns its result."""
        reply = self.call(operation, document, as_key, **arguments)
        expect(not reply.refused, f"{operation} {arguments} was refused: {reply}")
        return reply.value

    def no(self, status, operation, document=None, as_key=None, **arguments):
        """Sends an operation that must be refused with this HTTP status or its exit code, and returns the explanation."""
        reply = self.call(operation, document, as_key, **arguments)
        wanted = {self.door.expected(status)}
        if status == 400 and self.door.name == "cli":
            wanted.add(2)  # The command line itself refuses unknown values of parameters with fixed values.
        expect(reply.refused and reply.status in wanted, f"{operation} {arguments} gave {reply}, expected a refusal with {wanted}")
        return self.door.detail(reply)

    def publish(self, text, name=None, **more):
        """Publishes a workflow document with `NAME` replaced by a fresh name, activates it and returns its name."""
        name = name or self.fresh("flow")
        for world in filter(None, [self, self.outer]):
            world.published += 1
        self.ok("publishVersion", document=text.replace("NAME", name), name=name, activate=True, **more)
        return name

    def start(self, workflow, input=None, **more):
        """Starts a run and returns its id."""
        return self.ok("startRun", workflow=workflow, **({} if input is None else {"input": input}), **more)["id"]

    def show(self, run):
        return self.ok("showRun", run=run)

    def until(self, run, *statuses, seconds=30):
        """Waits until the run has one of these statuses, and returns it."""
        return self.wait(lambda: (lambda shown: shown if shown["status"] in statuses else None)(self.show(run)), f"{run} is {statuses}", seconds)

    def done(self, workflow, input=None, **more):
        """Starts a run, waits until it has completed and returns its result."""
        return self.until(self.start(workflow, input, **more), "completed", "failed")

    def wait(self, condition, what, seconds=30):
        """Waits until the condition returns something true, and returns that."""
        end, pause = time.monotonic() + seconds, 0.01
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > end:
                raise Failed(f"after {seconds} s it is not true that {what}")
            time.sleep(pause)
            pause = min(pause * 2, 0.3)

    def send(self, run, name, payload=None, **more):
        return self.ok("signalRun", run=run, name=name, body=payload, **more)

    def history(self, run):
        return [row["entry"] for row in self.ok("listHistory", run=run, limit=200)["items"]]

    def task(self, action, worker="worker"):
        """Leases a task of this action, and waits for it."""
        def one():
            tasks = self.ok("pollTasks", worker=worker, actions=[action])["tasks"]
            return tasks[0] if tasks else None
        return self.wait(one, f"there is a task of {action}")


CHECKS, EMPTY = [], {}
Check = collections.namedtuple("Check", "promises function alone yaml doors")


def promise(*promises, alone=False, yaml=True, doors=("http", "cli")):
    """Registers a check of promises. `alone`: it stops the server, so no other check may run. `yaml`: published documents count."""

    def register(function):
        CHECKS.append(Check(promises, function, alone, yaml, doors))
        return function

    return register


def empty(promise, door, why):
    """Says why a promise cannot be shown through a door."""
    EMPTY[promise, door] = why
