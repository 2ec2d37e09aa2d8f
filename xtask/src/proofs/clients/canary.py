"""Passes secrets to everything that accepts them, provokes every kind of failure, and searches for them everywhere else.

Each secret is used in every field of `http.request` and of a remote action, with answers that return it and with every kind of
failure. Then everything the server has written or answered is searched: API answers, history, exports, the audit trail, the log
at its most verbose level, traces, the output of the command line, and the bytes of the database. The recipients of a secret (the
HTTP server and the worker) must receive it, because a secret that is never used proves nothing.

With `--plant`, the secrets are also sent as ordinary data. They must then be found in every searched place.

Uses the Python standard library only.
"""

import argparse
import base64
import collections
import http.client
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

from served import Server, environment, made_key

# Typical secrets: a token, a number, a short one, and one that must be escaped everywhere.
SECRETS = {
    "TOKEN": "c4n4ry-" + base64.b32encode(os.urandom(20)).decode().lower(),
    "NUMBER": str(700_000_000_000 + int.from_bytes(os.urandom(4), "big")),
    "SHORT": "ßÞ7",
    "ODD": 'ca"na/ry\\ ö?&=' + os.urandom(6).hex(),
}
PLACES = ["answers", "history", "exports", "audit", "log", "traces", "command line", "database"]


def spellings(secret):
    """Returns the encodings in which a secret may appear."""
    quoted = json.dumps(secret)[1:-1]
    unicode = json.dumps(secret, ensure_ascii=False)[1:-1]
    raw = secret.encode()
    found = {secret, quoted, unicode, json.dumps(quoted)[1:-1], urllib.parse.quote(secret), urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret)}
    if len(secret) >= 6:
        found |= {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("="), raw.hex()}
    return found


class Heard(http.server.BaseHTTPRequestHandler):
    """The HTTP server that `http.request` calls: records requests, and returns their secrets in many ways."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.path.startswith("/v1/traces"):
            self.server.traces.append(body)
            return self.answer(200, b"{}")
        said = self.path.encode() + b"\n" + str(self.headers).encode("utf-8", "surrogateescape") + body
        self.server.heard.append(said + urllib.parse.unquote_to_bytes(self.path))
        echo = json.dumps({"path": self.path, "asked": dict(self.headers), "body": body.decode(errors="replace")}).encode()
        way = self.path.split("?")[0].strip("/").split("/")[0]
        if way == "fail":
            return self.answer(500, echo)
        if way == "text":
            return self.answer(200, b"you sent: " + said, "text/plain")
        if way == "binary":
            return self.answer(200, said + b"\xff\xfe\x00", "application/octet-stream")
        if way == "redirect":
            return self.answer(302, echo, location="/echo?" + self.path.partition("?")[2])
        if way == "slow":
            time.sleep(3)
            return self.answer(200, echo)
        if way == "cut":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + echo)
            self.close_connection = True
            return None
        return self.answer(200, echo)

    do_POST = do_PUT = do_GET

    def handle(self):
        try:
            super().handle()
        except OSError:
            # The client did not wait for the answer.
            pass

    def answer(self, status, body, kind="application/json", location=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)


class Canary:
    def __init__(self, options):
        self.options, self.found, self.told = options, collections.Counter(), []
        self.looked, self.refused, self.published = 0, 0, 0
        self.folder = tempfile.mkdtemp(prefix="stepwell-canary-")
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Heard)
        self.other.heard, self.other.traces, self.other.daemon_threads = [], [], True
        threading.Thread(target=self.other.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.other.server_port}"
        self.settings = {
            "STEPWELL_DATABASE__URL": "sqlite:canary.sqlite", "STEPWELL_HTTP__ALLOW": "127.0.0.1", "STEPWELL_LOG__FILTER": "trace",
            "STEPWELL_LOG__FORMAT": "json", "STEPWELL_TELEMETRY__ENDPOINT": self.url, "STEPWELL_FLOWS__KEY_FILE": "flow.keys",
            **{f"STEPWELL_SECRET_{name}": secret for name, secret in SECRETS.items()},
        }
        with open(os.path.join(self.folder, "flow.keys"), "w") as keys:
            keys.write("one:" + base64.urlsafe_b64encode(os.urandom(32)).decode() + "\n")
        self.key = made_key(options.stepwell, self.folder, self.settings, ("view", "read", "manage", "publish", "admin", "worker:*"))
        self.server = Server(options.stepwell, self.folder, self.settings, self.log)
        self.server.start()
        self.texts = {secret: [text.encode() for text in spellings(secret)] for secret in SECRETS.values()}
        self.runs, self.given = [], []

    def look(self, place, what, text):
        """Searches for every secret in a readable text."""
        self.looked += 1
        data = text if isinstance(text, bytes) else text.encode()
        for name, secret in SECRETS.items():
            # A few bytes can occur in a binary file by chance.
            if place == "database" and len(secret) < 6:
                continue
            spelled = next((one for one in self.texts[secret] if one in data), None)
            if spelled:
                self.found[place] += 1
                if len(self.told) < 40:
                    at = data.index(spelled)
                    self.told.append(f"{place}: {name} in {what}: …{data[max(0, at - 80):at + 60]!r}…")

    def ask(self, method, path, body=None, headers=None, place="answers"):
        """Sends a request and returns status and body. Searches the answer unless `place` is None, for a recipient of secrets."""
        connection = http.client.HTTPConnection(self.server.address, timeout=60)
        sent = {"Authorization": "Bearer " + self.key, "Content-Type": "application/json", **(headers or {})}
        connection.request(method, path, body if isinstance(body, (str, type(None))) else json.dumps(body), sent)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if place:
            self.look(place, f"{method} {path}: {answer.status}", data)
        try:
            return answer.status, json.loads(data) if data else None
        except ValueError:
            return answer.status, data

    def publish(self, name, text):
        return self.ask("POST", f"/v1/workflows/{name}/versions?activate=true", text, {"Content-Type": "application/yaml"})

    def started(self, name, payload=None):
        status, run = self.ask("POST", "/v1/runs", {"workflow": name, "input": payload or {}})
        if status != 201:
            raise SystemExit(f"cannot start `{name}`: {status} {run}")
        self.runs.append(run["id"])
        return run["id"]

    # Functions that accept secrets.

    def requests(self):
        """Calls `http.request` with a secret in each field and each kind of answer, and passes the answer to other actions."""
        ways = ["echo", "fail", "text", "binary", "redirect", "slow", "cut"]
        # One secret is enough to show that the places are searched.
        for name in list(SECRETS)[:1] if self.options.plant else SECRETS:
            marker = f"{{ $secret: {name} }}"
            fields = {
                "header": f"url: '{self.url}/WAY', headers: {{ x-token: {marker} }}",
                "query": f"url: '{self.url}/WAY', query: {{ token: {marker} }}",
                "body": f"url: '{self.url}/WAY', method: POST, body: {{ token: {marker} }}",
                "url": f"url: {marker}",
                "nowhere": f"url: 'http://127.0.0.1:1/WAY', query: {{ token: {marker} }}, headers: {{ x-token: {marker} }}",
            }
            for field, text in fields.items():
                for way in ways if field in ("header", "query", "body") else ["echo"]:
                    # Not every secret is a valid header; then the attempt fails, which is a case to test as well.
                    self.passed_on(f"http-{name.lower()}-{field}-{way}", text.replace("WAY", way))

    def passed_on(self, name, text):
        status, answer = self.publish(name, f"""
steps:
  - id: asked
    type: control.try
    body:
      - {{ id: call, type: action.call, action: http.request, input: {{ timeout_seconds: 1, {text} }}, saveAs: said }}
    catch:
      - {{ id: failed, type: vars.set, values: {{ said: {{ $expr: error }} }} }}
  - {{ id: kept, type: action.call, action: store.set, input: {{ namespace: kept, key: '{name}', value: {{ $expr: vars.said }} }} }}
  - {{ id: told, type: action.call, action: event.emit, input: {{ name: said, data: {{ $expr: vars.said }} }} }}
  - {{ id: again, type: action.call, action: http.request, input: {{ timeout_seconds: 1, {text} }}, saveAs: twice }}
  - {{ id: done, type: control.return, value: {{ $expr: '[vars.said, vars.twice]' }} }}
""")
        if status != 201:
            raise SystemExit(f"cannot publish `{name}`: {status} {answer}")
        self.started(name)

    def workers(self):
        """Runs a remote action: the worker receives secrets and returns them in every field it can write."""
        schema = {"type": "object"}
        action = {"version": 1, "input": schema, "output": {}, "secretFields": ["/token"]}
        self.ask("PUT", "/v1/actions/canary.sing", action)
        strict = {"version": 1, "input": {"type": "object", "properties": {"token": {"type": "boolean"}}}, "output": {"type": "boolean"}, "secretFields": ["/token"]}
        self.ask("PUT", "/v1/actions/canary.fit", strict)
        for name in SECRETS:
            for action in ("sing", "fit"):
                flow = f"worker-{action}-{name.lower()}"
                status, answer = self.publish(flow, f"""
steps:
  - {{ id: sing, type: action.call, action: canary.{action}, input: {{ token: {{ $secret: {name} }}, note: hello }}, saveAs: sung, retry: {{ attempts: 1, delay: 100ms }} }}
  - {{ id: done, type: control.return, value: {{ $expr: vars.sung }} }}
""")
                if status != 201:
                    raise SystemExit(f"cannot publish `{flow}`: {status} {answer}")
                for _ in range(3):
                    self.started(flow)
        until, number = time.monotonic() + 30, 0
        while time.monotonic() < until:
            asked = {"actions": ["canary.sing", "canary.fit"], "worker": "canary", "max": 10}
            # A worker receives secrets by design.
            _, answer = self.ask("POST", "/v1/tasks/poll?wait=1s", asked, place=None)
            tasks = answer.get("tasks", [])
            if not tasks:
                break
            for task in tasks:
                number += 1
                self.sung(task, number)

    def sung(self, task, number):
        self.given.append(json.dumps(task["input"], ensure_ascii=False))
        secret, path = task["input"].get("token"), f"/v1/tasks/{urllib.parse.quote(task['id'], safe='')}"
        fence = {"fence": task["fence"]}
        self.ask("POST", path + "/heartbeat", {**fence, "note": f"I was given {secret}"})
        self.ask("GET", "/v1/tasks?limit=200")
        ways = [
            ("complete", {"output": {"text": f"<{secret}>", "list": [secret], secret: 1, "number": int(secret) if secret.isdigit() else 0}}),
            ("fail", {"error": {"code": "sung", "message": f"{secret} was wrong: {json.dumps(secret)}"}}),
            ("fail", {"error": {"code": "sung", "message": urllib.parse.quote(secret)}, "final": True}),
            ("complete", {"output": base64.b64encode(secret.encode()).decode()}),
        ]
        verb, body = ways[number % len(ways)]
        self.ask("POST", f"{path}/{verb}", {**fence, **body})

    def refusals(self):
        """Checks that a secret is refused wherever it is not allowed, including likely guesses of its syntax."""
        marker = "{ $secret: TOKEN }"
        steps = [
            f"{{ id: a, type: control.return, value: {marker} }}",
            f"{{ id: a, type: vars.set, values: {{ x: {marker} }} }}",
            f"{{ id: a, type: action.call, action: event.emit, input: {{ name: x, data: {marker} }} }}",
            f"{{ id: a, type: action.call, action: store.set, input: {{ namespace: x, key: x, value: {marker} }} }}",
            f"{{ id: a, type: action.call, action: http.request, input: {{ url: '{self.url}', method: {marker} }} }}",
            f"{{ id: a, type: action.call, action: transform, input: {marker} }}",
            f"{{ id: a, type: human.task, title: {marker} }}",
            f"{{ id: a, type: workflow.call, workflow: x, input: {marker} }}",
        ]
        for number, step in enumerate(steps):
            status, answer = self.publish(f"refused-{number}", f"steps:\n  - {step}\n")
            self.refused += status == 422
            self.published += status != 422
            if status != 422:
                self.told.append(f"refusal: {step} was published: {status} {answer}")
        for expression in ["$secret", "$secrets.TOKEN", "{'$secret': 'TOKEN'}", "$env", "secrets.TOKEN"]:
            self.ask("POST", "/v1/expressions/evaluate", {"expression": expression, "input": {}})
        hidden = f"steps:\n  - {{ id: call, type: action.call, action: http.request, input: {{ url: '{self.url}/echo', headers: {{ x: {marker} }} }} }}\n"
        self.ask("POST", "/v1/catalogue/simulate", {"document": hidden})
        self.publish("hook", f"trigger: {{ id: in, type: webhook, path: in, secret: {marker} }}\nsteps: [{{ id: done, type: control.return, value: {{ $expr: payload }} }}]\n")
        for signature in ("v1,wrong", "", "v1," + "A" * 44):
            headers = {"webhook-id": "1", "webhook-timestamp": str(int(time.time())), "webhook-signature": signature}
            self.ask("POST", "/hooks/00000000-0000-0000-0000-000000000001/in", {"x": 1}, headers)

    def planted(self):
        """Sends the secrets as ordinary data, which is not hidden."""
        secret = SECRETS["TOKEN"]
        self.publish("open", "steps:\n  - { id: kept, type: vars.set, values: { x: { $expr: payload.x } } }\n  - { id: go, type: wait.signal, signal: GO }\n")
        run = self.started("open", {"x": secret})
        self.ask("PUT", f"/v1/kv/open/{secret}", {"value": secret})
        self.publish(f"w{secret}", "steps: [{ id: done, type: control.return, value: 1 }]")
        self.started(f"w{secret}")
        self.ask("POST", f"/v1/runs/{run}/cancel?reason={secret}", {"reason": secret})

    # Places that are searched.

    def pages(self, path, place):
        cursor = None
        while True:
            more = f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""
            status, page = self.ask("GET", path + ("&" if "?" in path else "?") + "limit=200" + more, place=place)
            if status != 200:
                raise SystemExit(f"GET {path}: {status} {page}")
            yield from page["items"]
            cursor = page.get("nextCursor")
            if not cursor:
                return

    def settled(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if not list(self.pages("/v1/runs?status=running", "answers")):
                return
            time.sleep(0.2)
        raise SystemExit("some runs are still running after 60 s")

    def everything(self):
        for run in self.runs:
            self.ask("GET", f"/v1/runs/{run}")
            self.ask("GET", f"/v1/runs/{run}/doctor")
            self.ask("GET", f"/v1/runs/{run}/graph")
            self.ask("GET", f"/v1/runs/{run}/export", place="exports")
            versions = [row["version"] for row in self.pages(f"/v1/runs/{run}/history", "history")]
            for version in versions:
                self.ask("GET", f"/v1/runs/{run}/versions/{version}", place="history")
        for path in ("/v1/runs", "/v1/waits", "/v1/tasks", "/v1/kv/kept", "/v1/kv/open", "/v1/workflows", "/v1/handles", "/v1/triggers/hook/in/log"):
            list(self.pages(path, "answers"))
        events = [run["id"] for run in self.pages("/v1/runs?workflow=stepwell.event", "answers")]
        for event in events:
            self.ask("GET", f"/v1/events/{event}")
        list(self.pages("/v1/audit", "audit"))
        for path in ("/metrics", "/v1/doctor?deep=true", "/v1/actions", "/v1/triggers", "/v1/openapi.json"):
            self.ask("GET", path)
        self.ask("GET", "/v1/catalogue/export", place="exports")

    def command_line(self):
        verbs = [["run", "list"], ["run", "show", self.runs[0]], ["run", "history", self.runs[0]], ["run", "export", self.runs[0]], ["config", "show"],
                 ["doctor"], ["task", "list"], ["event", "list"], ["kv", "list", "kept"]]
        verbs += [["run", "show", run] for run in self.runs[-3:]]
        for verb in verbs:
            remote = [] if verb[0] == "config" else ["--server", "http://" + self.server.address]
            own = {**environment(self.settings), "STEPWELL_API_KEY": self.key}
            said = subprocess.run([self.options.stepwell, *verb, *remote], cwd=self.folder, env=own, capture_output=True, text=True)
            self.look("command line", " ".join(verb), said.stdout + said.stderr)

    def files(self):
        # A graceful stop flushes logs and traces.
        self.server.send(signal.SIGTERM)
        self.server.child.wait(60)
        for body in list(self.other.traces):
            self.look("traces", "a batch of spans", body)
        with open(self.log.name, "rb") as log:
            for line in log:
                self.look("log", "a line", line)
        for name in os.listdir(self.folder):
            if name.startswith("canary.sqlite"):
                with open(os.path.join(self.folder, name), "rb") as file:
                    self.look("database", name, file.read())

    def heard(self):
        """Returns the number of secrets that have reached their recipients."""
        heard = b"\n".join(self.other.heard).decode("utf-8", "replace") + "\n".join(self.given)
        latin = b"\n".join(self.other.heard).decode("latin-1")
        return sum(any(one in heard or one in latin for one in spellings(secret)) for secret in SECRETS.values())

    def run(self):
        self.requests()
        self.workers()
        self.refusals()
        if self.options.plant:
            self.planted()
        self.settled()
        self.everything()
        self.command_line()
        self.files()

    def end(self):
        self.server.end()
        self.other.shutdown()
        self.log.close()
        if not self.found or self.options.plant:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description="Searches for secrets in places where they must not appear.")
    parser.add_argument("--stepwell", required=True, help="path of the program `stepwell`")
    parser.add_argument("--plant", action="store_true", help="also send the secrets as ordinary data; they must be found in every place")
    parser.add_argument("--json", action="store_true", help="print the JSON result only")
    given = parser.parse_args()
    given.stepwell = os.path.abspath(given.stepwell)
    began = time.monotonic()
    canary = Canary(given)
    try:
        canary.run()
    finally:
        canary.end()
    missed = [place for place in PLACES if not canary.found[place]] if given.plant else []
    print(json.dumps({
        "workload": "canary", "planted": given.plant, "secrets": len(SECRETS), "heard": canary.heard(), "runs": len(canary.runs),
        "refused": canary.refused, "published": canary.published, "looked": canary.looked, "spans": len(canary.other.traces), "leaks": sum(canary.found.values()),
        "places": len(PLACES), "missed": missed, "seconds": round(time.monotonic() - began, 1),
    }))
    if not given.plant or not given.json:
        for told in canary.told:
            print(told, file=sys.stderr)
    return 1 if canary.published or (missed if given.plant else canary.found) else 0


if __name__ == "__main__":
    sys.exit(main())
