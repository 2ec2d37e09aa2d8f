"""Drives flows over HTTP, by workflow documents and configuration alone, while the server is killed.

Sealed, handle and durable flows are resumed by many clients at once, and exactly one of them takes effect. Mail scanners load
links, people send wrong answers, a flow moves from a token to a handle to a durable run, and mails arrive at a real SMTP receiver.
Between and during all this the server is killed with SIGKILL and started again.

Uses the Python standard library only.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import quopri
import random
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time

from served import Server, environment, made_key

PUBLIC = "https://flows.example.com"
STRATEGIES = ["sealed", "handle", "durable"]
CONCURRENT = 20
CONFIGURATION = """
[server]
public_url = "https://flows.example.com"
anonymous_requests_per_second = 0

[mail]
host = "127.0.0.1"
port = PORT
security = "none"
from = "Stepwell <noreply@example.com>"

[flows]
key_file = "flow.keys"
default_strategy = "durable"
workflows = { configured = "quick" }

[flows.strategies.quick]
kind = "handle"
ttl = "1h"

[flows.outlets.mail]
kind = "email"

[flows.outlets.mail.templates.default]
subject = "{{workflow}}"
text = "Answer here: {{link}}"
"""
COUNT = """
name: NAME
strategy: STRATEGY
steps:
  - { id: ask, type: human.task, form: { type: object, required: [by], properties: { by: { type: string, minLength: 3 } } } }
  - { id: wrong, type: control.fail, condition: "vars.ask.by = 'wrong'", errors: [{ pointer: /by, message: not you }] }
  - { id: count, type: action.call, action: store.increment, input: { namespace: effects, key: { $expr: payload.id } } }
  - { id: done, type: control.return, value: { by: { $expr: vars.ask.by } } }
"""
INVITE = """
name: NAME
strategy: STRATEGY
steps:
  - { id: send, type: action.call, action: flow.sendOut, input: { outlet: mail, to: { $expr: payload.to } } }
  - { id: accept, type: human.task, form: { type: object, required: [nick], properties: { nick: { type: string, minLength: 2 } } } }
  - { id: count, type: action.call, action: store.increment, input: { namespace: effects, key: { $expr: payload.id } } }
  - { id: done, type: control.return, value: { $expr: vars.accept.nick } }
"""
MOVING = """
name: moving
strategy: sealed
steps:
  - { id: first, type: human.task }
  - { id: count, type: action.call, action: store.increment, input: { namespace: effects, key: { $expr: payload.id } } }
  - { id: toHandle, type: action.call, action: flow.useStrategy, input: { strategy: handle } }
  - { id: second, type: human.task }
  - { id: count2, type: action.call, action: store.increment, input: { namespace: effects, key: { $expr: payload.id } } }
  - { id: toRun, type: action.call, action: flow.useStrategy, input: { strategy: durable } }
  - { id: third, type: human.task }
  - { id: count3, type: action.call, action: store.increment, input: { namespace: effects, key: { $expr: payload.id } } }
  - { id: done, type: control.return, value: { $expr: vars.count3.value } }
"""


class Mails(socketserver.ThreadingTCPServer):
    """An SMTP receiver that keeps the links it gets, by recipient."""

    daemon_threads, allow_reuse_address = True, True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Conversation)
        self.links, self.count = {}, 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def link(self, recipient, seconds=30):
        """Waits for a mail to this address and returns the path of its link."""
        until = time.monotonic() + seconds
        while recipient not in self.links:
            if time.monotonic() > until:
                raise SystemExit(f"no mail has arrived for {recipient} within {seconds} s")
            time.sleep(0.005)
        return self.links[recipient]


class Conversation(socketserver.StreamRequestHandler):
    def say(self, text):
        self.wfile.write(text.encode() + b"\r\n")

    def handle(self):
        try:
            self.talk()
        except OSError:
            # The server was killed while it sent a mail.
            pass

    def talk(self):
        self.say("220 mail.example.com")
        recipient = None
        while line := self.rfile.readline():
            word = line.split(b" ")[0].split(b":")[0].strip().upper()
            if word == b"EHLO":
                self.say("250 mail.example.com")
            elif word == b"RCPT":
                recipient = re.search(rb"<([^>]*)>", line).group(1).decode()
                self.say("250 ok")
            elif word == b"DATA":
                self.say("354 go on")
                text = b""
                while (line := self.rfile.readline()) not in (b".\r\n", b""):
                    # SMTP doubles a dot at the beginning of a line.
                    text += line.removeprefix(b".")
                text = quopri.decodestring(text).decode(errors="replace")
                found = re.search(re.escape(PUBLIC) + r"(/l/[A-Za-z0-9._~%-]+)", text)
                if not found:
                    raise SystemExit(f"a mail has no link: {text}")
                self.server.links[recipient] = found.group(1)
                self.server.count += 1
                self.say("250 ok")
            elif word == b"QUIT":
                return self.say("221 bye")
            else:
                self.say("250 ok")


class Proof:
    def __init__(self, options):
        self.options, self.folder = options, tempfile.mkdtemp(prefix="stepwell-flows-")
        self.random, self.mails = random.Random(options.seed), Mails()
        self.log = open(os.path.join(self.folder, "log"), "w")
        self.settings = {"STEPWELL_DATABASE__URL": "sqlite:flows.sqlite", "STEPWELL_LOG__FILTER": "warn"}
        self.counts = dict.fromkeys(["flows", "resumes", "accepted", "unanswered", "wrong", "gets", "kills", "findings"], 0)
        self.told, self.guard, self.number = [], threading.Lock(), 0
        with open(os.path.join(self.folder, "stepwell.toml"), "w") as file:
            file.write(CONFIGURATION.replace("PORT", str(self.mails.server_address[1])))
        self.command("key", "create", "flow.keys", "--id", "one")
        self.key = made_key(options.stepwell, self.folder, self.settings)
        self.server = Server(options.stepwell, self.folder, self.settings, self.log)
        self.server.start()
        for strategy in STRATEGIES:
            self.publish(f"count-{strategy}", COUNT, strategy)
            self.publish(f"invite-{strategy}", INVITE, strategy)
        self.publish("moving", MOVING, "")
        self.publish("configured", COUNT, "sealed")

    def command(self, *words):
        done = subprocess.run(
            [self.options.stepwell, *words], cwd=self.folder, env=environment(self.settings), capture_output=True, text=True
        )
        if done.returncode != 0:
            raise SystemExit(f"`stepwell {' '.join(words)}` failed: {done.stderr}")
        return done.stdout

    def find(self, what):
        with self.guard:
            self.counts["findings"] += 1
            self.told.append(what)

    def add(self, name, number=1):
        with self.guard:
            self.counts[name] += number

    def ask(self, method, path, body=None, key=None, kind="application/json", accept="application/json"):
        """Sends a request and returns status and body. The status is None if the server was killed meanwhile."""
        headers = {"Content-Type": kind, "Accept": accept}
        if key:
            headers["Authorization"] = "Bearer " + key
        data = body if isinstance(body, (str, type(None))) else json.dumps(body)
        try:
            connection = http.client.HTTPConnection(self.server.address, timeout=60)
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
        except (OSError, http.client.HTTPException):
            return None, None
        if answer.status >= 500 and answer.status != 503:
            self.find(f"{method} {path.split('/l/')[0]} answered {answer.status}: {text}")
        return answer.status, json.loads(text) if text.startswith("{") else text

    def publish(self, name, text, strategy):
        text = text.replace("NAME", name).replace("STRATEGY", strategy)
        status, body = self.ask("POST", f"/v1/workflows/{name}/versions?activate=true", text, self.key, "application/yaml")
        if status not in (200, 201):
            raise SystemExit(f"`{name}` cannot be published: {body}")

    def start(self, workflow, **given):
        """Starts a flow and returns its id for effects and its answer."""
        with self.guard:
            self.number += 1
            own = f"flow-{self.number}"
        status, body = self.ask("POST", f"/v1/flows/{workflow}", {"input": {"id": own, **given}}, self.key)
        if status != 201:
            raise SystemExit(f"`{workflow}` cannot be started: {status} {body}")
        self.add("flows")
        return own, body

    def resume(self, token, given):
        self.add("resumes")
        return self.ask("POST", "/v1/flows/resume", {"token": token, "input": given})

    def effects(self, own):
        """Returns the number of effects that a flow has had."""
        status, body = self.ask("GET", f"/v1/kv/effects/{own}", key=self.key)
        return body["value"] if status == 200 else 0

    def settled(self, own, expected):
        """Checks the number of effects, which a durable run may still be about to have."""
        until = time.monotonic() + 30
        while (count := self.effects(own)) < expected and time.monotonic() < until:
            time.sleep(0.01)
        if count != expected:
            self.find(f"{own} has had {count} effects instead of {expected}")

    def restart(self):
        self.server.kill()
        self.add("kills")
        self.server.start()

    def race(self, pool, strategy, is_killed):
        """Resumes one flow by many clients at once, and kills the server meanwhile if asked."""
        own, begun = self.start(f"count-{strategy}")
        token = begun["token"]
        if not token.startswith(strategy + ".") or not begun["url"].startswith(PUBLIC + "/l/"):
            self.find(f"{strategy}: the answer has the token {token[:12]}… and the URL {begun.get('url')}")
        resumes = [pool.submit(self.resume, token, {"by": f"caller-{number}"}) for number in range(CONCURRENT)]
        if is_killed:
            time.sleep(self.random.random() * 0.03)
            self.restart()
        statuses = [resume.result()[0] for resume in resumes]
        accepted = statuses.count(200)
        self.add("unanswered", statuses.count(None))
        # A client without an answer asks again.
        until = time.monotonic() + 30
        while not accepted and time.monotonic() < until:
            status, _ = self.resume(token, {"by": "again"})
            if status in (200, 410):
                break
            time.sleep(0.05)
        if accepted > 1 or (not is_killed and accepted != 1):
            self.find(f"{strategy}: {accepted} of {CONCURRENT} resumes were accepted: {statuses}")
        strange = [status for status in statuses if status not in (200, 409, 410, None, 503)]
        if strange:
            self.find(f"{strategy}: unexpected statuses {strange}")
        self.settled(own, 1)
        self.add("accepted")
        if self.resume(token, {"by": "late"})[0] != 410:
            self.find(f"{strategy}: a used token is not gone")

    def wrong(self, strategy):
        """Sends wrong answers, which are named and use nothing up."""
        own, begun = self.start(f"count-{strategy}")
        for given in [{"by": "wrong"}, {"by": "x"}, {}, {"by": "wrong"}]:
            status, body = self.resume(begun["token"], given)
            if status != 422 or not body.get("errors"):
                self.find(f"{strategy}: the wrong answer {given} got {status} {body}")
            self.add("wrong")
        if self.resume(begun["token"], {"by": "right"})[0] != 200:
            self.find(f"{strategy}: the right answer after wrong ones was refused")
        self.settled(own, 1)

    def invited(self, strategy, is_killed):
        """Sends a link by mail, lets scanners load it, and answers it as a browser does."""
        recipient = f"p{self.number}@example.com"
        own, begun = self.start(f"invite-{strategy}", to=recipient)
        if not begun.get("watchOnly") or begun.get("sent") not in ("mail", None):
            self.find(f"{strategy}: the caller got more than a token to watch: {begun}")
        link = self.mails.link(recipient)
        status, body = self.resume(begun["token"], {"nick": "eve"})
        if (status, body.get("code")) != (403, "watchOnly"):
            self.find(f"{strategy}: a token to watch got {status} {body}")
        before = self.rows()
        for number in range(10):
            method = ["GET", "HEAD"][number % 2]
            if self.ask(method, link, accept="text/html")[0] != 200:
                self.find(f"{strategy}: the link cannot be loaded")
            self.add("gets")
        if before != self.rows() or self.effects(own):
            self.find(f"{strategy}: loading a link has changed something")
        if is_killed:
            self.restart()
        form = "application/x-www-form-urlencoded"
        if self.ask("POST", link, "nick=a", kind=form, accept="text/html")[0] != 422:
            self.find(f"{strategy}: a wrong form was accepted")
        if self.ask("POST", link, "nick=ann", kind=form, accept="text/html")[0] != 200:
            self.find(f"{strategy}: the form was not accepted")
        self.settled(own, 1)
        if self.ask("POST", link, "nick=bob", kind=form, accept="text/html")[0] != 410:
            self.find(f"{strategy}: a used link is not gone")

    def rows(self):
        """Returns the handles without their times of delivery, which the sending of a mail changes."""
        status, body = self.ask("GET", "/v1/handles?limit=200", key=self.key)
        if status != 200:
            raise SystemExit(f"handles cannot be listed: {status} {body}")
        return sorted((row["handle"], row["reserved"]) for row in body["items"])

    def moved(self, is_killed):
        """Takes a flow from a token to a handle to a durable run, and checks that no old token works."""
        own, answer = self.start("moving")
        old = []
        for strategy in ["handle", "durable", None]:
            old.append(answer["token"])
            if is_killed:
                self.restart()
            status, answer = self.resume(old[-1], {})
            if status != 200 or answer.get("strategy") != strategy:
                self.find(f"moving to {strategy}: {status} {answer}")
                return
            if any(self.resume(token, {})[0] != 410 for token in old):
                self.find(f"moving to {strategy}: an old token still works")
        if answer["result"] != 3:
            self.find(f"the moved flow ended with {answer}")
        self.settled(own, 3)

    def configured(self):
        """The configuration overrides the document, and a sealed workflow is no run."""
        _, begun = self.start("configured")
        if begun["strategy"] != "quick":
            self.find(f"the configured strategy is not used: {begun}")
        status, body = self.ask("POST", "/v1/runs", {"workflow": "count-sealed"}, self.key)
        if (status, body.get("code")) != (409, "notARun"):
            self.find(f"a sealed workflow was started as a run: {status} {body}")

    def rotated(self):
        """Rotates the sealing key while a token of the old one is in use."""
        own, begun = self.start("count-sealed")
        self.command("key", "rotate", "flow.keys", "--id", "two")
        until = time.monotonic() + 20
        while self.ask("GET", "/v1/keys", key=self.key)[1]["items"][0]["id"] != "two":
            if time.monotonic() > until:
                return self.find("the server does not read a changed key file")
            time.sleep(0.05)
        if self.resume(begun["token"], {"by": "old key"})[0] != 200:
            self.find("a token of the old key is not valid")
        self.settled(own, 1)

    def run(self):
        began = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(CONCURRENT) as pool:
            self.configured()
            for round_ in range(self.options.rounds):
                for strategy in STRATEGIES:
                    self.race(pool, strategy, False)
                    self.race(pool, strategy, True)
                    self.wrong(strategy)
                    self.invited(strategy, round_ % 2 == 0 and strategy == "handle")
                self.moved(round_ % 2 == 0)
            self.rotated()
        if self.mails.count < 3 * self.options.rounds:
            self.find(f"only {self.mails.count} mails have arrived")
        return {**self.counts, "mails": self.mails.count, "seconds": round(time.monotonic() - began, 1)}

    def close(self):
        self.server.end()
        self.mails.shutdown()
        self.log.close()
        if not self.counts["findings"]:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--stepwell", required=True)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true")
    proof = Proof(options.parse_args())
    try:
        line = proof.run()
    finally:
        proof.close()
    for what in proof.told:
        print(what, file=sys.stderr)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
