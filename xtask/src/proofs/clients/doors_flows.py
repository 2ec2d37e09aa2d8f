"""Checks of flows (E) and of their configuration (G11), through any door."""

import base64
import concurrent.futures
import contextlib
import datetime
import hashlib
import hmac
import http.server
import json
import os
import subprocess
import threading
import types
import uuid

from doorkit import Cli, Http, World, expect, promise, same
from flows import PUBLIC, Mails
from served import Server, environment, made_key

CONFIGURATION = """
[server]
public_url = "https://flows.example.com"
anonymous_requests_per_second = 0

[mail]
host = "127.0.0.1"
port = MAILS
security = "none"
from = "Stepwell <noreply@example.com>"

[http]
allow = ["127.0.0.1"]

[flows]
key_file = "flow.keys"
handle_retention = "never"
block = ["blocked-http", "blocked-cli"]
workflows = { configured-http = "quick_1-a", configured-cli = "quick_1-a" }

[flows.strategies.quick_1-a]
kind = "handle"
ttl = "1h"

[flows.strategies.brief]
kind = "handle"
ttl = "300ms"

[flows.strategies.lasting]
kind = "handle"
ttl = "never"

[flows.strategies.once]
kind = "sealed"
once = true

[flows.outlets.mail]
kind = "email"

[flows.outlets.mail.templates.default]
subject = "{{workflow}}"
text = "Answer here: {{link}}"

[flows.outlets.hook]
kind = "webhook"
url = "http://127.0.0.1:HOOK/hook"
secret_file = "hook.secret"
allow_private_hosts = ["127.0.0.1"]
"""
SECRET = base64.b64encode(b"a secret of thirty-two bytes....").decode()


class Receiver(http.server.ThreadingHTTPServer):
    """An HTTP receiver. It keeps what is posted to `/hook`, and holds a request to any other path until it is let go."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Held)
        self.posted, self.arrived, self.gates = [], [], {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, name):
        self.gates[name] = threading.Event()
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


class Held(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/hook":
            self.server.posted.append((self.headers, body))
        else:
            self.server.arrived.append(self.path[1:])
            self.server.gates[self.path[1:]].wait(20)
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_):
        pass


def settings(folder):
    """Returns settings of the server that the checks of flows need: they are all in its `stepwell.toml`."""
    return {}


def prepare(site):
    """Writes the files that the server's configuration names, before the server starts."""
    site.mails, site.receiver = Mails(), Receiver()
    text = CONFIGURATION.replace("MAILS", str(site.mails.server_address[1])).replace("HOOK", str(site.receiver.server_address[1]))
    write(site.folder, "stepwell.toml", text)
    write(site.folder, "hook.secret", f"whsec_{SECRET}\n")
    local(site, "key", "create", "flow.keys", "--id", "one")


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def local(site, *words):
    """Runs a command that needs no server in the site's folder, and returns its exit code and what it printed."""
    own = {"STEPWELL_DATABASE__URL": "sqlite:own.sqlite"}
    done = subprocess.run([site.program, *words], cwd=site.folder, env=environment(own), capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout + done.stderr


def folder(w, configuration):
    """Returns a new folder with a configuration and a key file, and what is needed to run commands there."""
    path = os.path.join(w.folder, w.fresh("folder"))
    os.mkdir(path)
    write(path, "stepwell.toml", configuration)
    place = types.SimpleNamespace(program=w.program, folder=path, operations=w.operations, commands=w.commands, store="sqlite")
    local(place, "key", "create", "flow.keys", "--id", "one")
    return place


@contextlib.contextmanager
def another(w, flows):
    """Starts another server with these settings of flows, and gives the same door into it."""
    site = folder(w, f'[flows]\nkey_file = "flow.keys"\n{flows}\n')
    own = {"STEPWELL_DATABASE__URL": "sqlite:own.sqlite", "STEPWELL_LOG__FILTER": "warn"}
    site.key = made_key(site.program, site.folder, own)
    site.server = Server(site.program, site.folder, own, w.log)
    try:
        site.server.start()
        yield World(site, type(w.door))
    finally:
        site.server.end()


def begun(w, workflow, input=None, **more):
    """Starts a flow that waits, and returns the answer."""
    return w.ok("startFlow", workflow=workflow, input=input or {}, **more)


def resume(w, token, input=None, headers=None):
    """Answers the wait of a token. A request has no other credential; the command takes no headers."""
    if w.door.name == "cli":
        return w.door.command(["token", "resume", json.dumps(input or {}), "--token-file", w.file(token)])
    body = json.dumps({"token": token, "input": input or {}}).encode()
    return w.door.request("POST", "/v1/flows/resume", body, {"Content-Type": "application/json", **(headers or {})})


def show(w, token):
    if w.door.name == "cli":
        return w.door.command(["token", "show", "--token-file", w.file(token)])
    return w.door.request("GET", "/v1/flows/show", headers={"X-Flow-Token": token})


def taken(reply):
    expect(not reply.refused, f"the token was refused: {reply}")
    return reply.value


def refused(w, reply, status):
    same(reply.status, w.door.expected(status), f"the status of `{reply}`")
    return w.door.detail(reply)


def gone(w, reply):
    same(refused(w, reply, 410).count("The link or token is no longer valid."), 1, f"the explanation in `{reply}`")


def effects(w, key):
    """Returns how often `store.increment` has counted this key of the namespace `effects`."""
    reply = w.call("getKey", namespace="effects", key=key)
    return reply.value["value"] if not reply.refused else 0


def rows(w, flow):
    return w.ok("listHandles", run=flow)["items"]


def lifetime(since, until):
    return (datetime.datetime.fromisoformat(until) - datetime.datetime.fromisoformat(since)).total_seconds()


def flow(strategy, *steps, more=""):
    """Returns a workflow document. Without a strategy, it names none."""
    return f"name: NAME\n{f'strategy: {strategy}' if strategy else ''}\n{more}steps:\n" + "".join(f"  - {step}\n" for step in steps)


ASK = "{ id: ask, type: human.task, form: { type: object, properties: { by: { type: string, minLength: 3 } } } }"
THEN = "{ id: then, type: human.task }"
COUNT = "{ id: count, type: action.call, action: store.increment, input: { namespace: effects, key: NAME } }"
DONE = "{ id: done, type: control.return, value: { $expr: vars.ask.by } }"
SEND = "{ id: send, type: action.call, action: flow.sendOut, input: { outlet: OUTLET, to: { $expr: payload.to } } }"


def switch(step, strategy):
    return f"{{ id: {step}, type: action.call, action: flow.useStrategy, input: {{ strategy: {strategy} }} }}"


@promise("E1")
def a_sealed_token_is_the_state_and_no_byte_of_it_can_be_changed(w):
    name = w.publish(flow("sealed", ASK, DONE))
    begin = begun(w, name)
    token = begin["token"]
    same([rows(w, begin["flow"]), w.ok("listRuns", workflow=name)["items"]], [[], []], "rows of a sealed flow")
    w.no(404, "showRun", run=begin["flow"])
    for at in [*range(len("sealed."), len(token), len(token) // 8), len(token) - 1]:
        gone(w, resume(w, token[:at] + ("B" if token[at] == "A" else "A") + token[at + 1 :], {"by": "eve"}))
    same(taken(resume(w, token, {"by": "ann"}))["result"], "ann")
    same(rows(w, begin["flow"]), [], "rows of a sealed flow that has ended")


@promise("E1")
def a_sealed_token_used_twice_writes_once(w):
    name = w.publish(flow("sealed", ASK, COUNT, DONE))
    token = begun(w, name)["token"]
    taken(resume(w, token, {"by": "ann"}))
    gone(w, resume(w, token, {"by": "bob"}))
    same(effects(w, name), 1, "the number of writes")
    token = begun(w, w.publish(flow("sealed", ASK, DONE)))["token"]
    same([taken(resume(w, token, {"by": by}))["result"] for by in ["ann", "bob"]], ["ann", "bob"], "the results without writes")
    token = begun(w, w.publish(flow("once", ASK, DONE)))["token"]
    same(taken(resume(w, token, {"by": "ann"}))["result"], "ann")
    gone(w, resume(w, token, {"by": "bob"}))


@promise("E1")
def a_workflow_that_cannot_rest_sealed_is_refused_with_its_step(w):
    for step, what in [
        ("{ id: nap, type: wait.sleep, for: 1s }", "timer"),
        ("{ id: nap, type: workflow.call, workflow: other }", "child workflows"),
        ("{ id: nap, type: action.call, action: log, input: { message: a }, retry: 2 }", "retries"),
        ("{ id: nap, type: action.call, action: state.set, input: { scope: execution, key: a, value: 1 } }", "slot"),
    ]:
        name = w.fresh("restless")
        why = w.no(422, "publishVersion", document=flow("sealed", ASK, step).replace("NAME", name), name=name, activate=True)
        expect("step `nap`: the strategy `sealed` allows no " + what in why, f"the refusal of a {what} is: {why}")


@promise("E1")
def sealing_keys_rotate_and_a_removed_key_opens_nothing(w):
    with another(w, "") as v:
        name = v.publish(flow("sealed", ASK, DONE))
        first, second = begun(v, name)["token"], begun(v, name)["token"]
        local(v.site, "key", "rotate", "flow.keys", "--id", "two")
        keys = lambda: [(key["id"], key["seals"]) for key in v.ok("listSealingKeys")["items"]]
        v.wait(lambda: keys() == [("two", True), ("one", False)], "the new key seals and the old one opens")
        newer = begun(v, name)["token"]
        sealed_by = lambda token: base64.urlsafe_b64decode(token.rsplit(".", 1)[1] + "==").split(b".")[0]
        same([sealed_by(first) == b"one", sealed_by(newer) == b"two"], [True, True], "whether the tokens are sealed by `one` and `two`")
        taken(resume(v, first, {"by": "ann"}))
        local(v.site, "key", "remove", "flow.keys", "one")
        v.wait(lambda: keys() == [("two", True)], "the old key is removed")
        gone(v, resume(v, second, {"by": "ann"}))
        taken(resume(v, newer, {"by": "ann"}))


@promise("E2")
def a_handle_is_a_secret_that_is_stored_hashed_and_names_its_tenant(w):
    begin = begun(w, w.publish(flow("handle", ASK, DONE)))
    secret = begin["token"].removeprefix("handle.")
    raw = base64.urlsafe_b64decode(secret)
    tenant = World(w.site, Http).ok("whoami")["tenant"]
    same([str(uuid.UUID(bytes=raw[:16])), len(raw) - 16], [tenant, 32], "the tenant and the length of the secret")
    row = rows(w, begin["flow"])[0]
    expect(secret not in json.dumps(row) and raw.hex() not in json.dumps(row) and len(row["handle"]) == 64, f"the row shows the secret: {row}")
    if w.store == "sqlite":
        stored = [open(os.path.join(w.folder, name), "rb").read() for name in os.listdir(w.folder) if name.startswith("doors.sqlite")]
        expect(not any(part in text for part in [secret.encode(), raw, raw[16:]] for text in stored), "the secret is stored in clear")
    theirs = base64.urlsafe_b64encode(uuid.uuid4().bytes + raw[16:]).decode()
    gone(w, resume(w, "handle." + theirs, {"by": "eve"}))
    same(taken(resume(w, begin["token"], {"by": "ann"}))["result"], "ann")


@promise("E2", "E6", alone=True)
def handles_survive_a_killed_server_also_while_a_step_of_them_runs(w):
    gate, channel = w.fresh("gate"), World(w.site, Cli if w.door.name == "http" else Http)
    held = f"{{ id: call, type: action.call, action: http.request, input: {{ url: '{w.receiver.url(gate)}', method: POST }} }}"
    name = w.publish(flow("handle", ASK, held, COUNT, DONE))
    quiet = begun(w, w.publish(flow("handle", ASK, DONE)))["token"]
    token = begun(w, name)["token"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        lost = pool.submit(resume, w, token, {"by": "ann"})
        w.wait(lambda: gate in w.receiver.arrived, "the step runs")
        busy = resume(w, token, {"by": "bob"})
        refused(w, busy, 409)
        expect(w.door.name == "cli" or int(busy.headers["retry-after"]) > 0, f"a busy handle has no delay for the retry: {busy.headers}")
        w.site.restart()
        w.receiver.gates[gate].set()
        expect(lost.exception() or lost.result().refused, "the killed server has answered")
    again = w.wait(lambda: (lambda reply: None if reply.refused else reply)(resume(channel, token, {"by": "cid"})), "the handle is good again")
    same([again.value["result"], effects(w, name)], ["cid", 1], "the result and the number of effects")
    gone(w, resume(w, token, {"by": "dan"}))
    same(taken(resume(channel, quiet, {"by": "eve"}))["result"], "eve")


@promise("E3")
def the_name_before_the_dot_selects_the_strategy(w):
    tokens = {name: begun(w, w.publish(flow(name, ASK, DONE)))["token"] for name in ["sealed", "handle", "durable", "quick_1-a"]}
    for name, token in reversed(tokens.items()):
        same([token.split(".")[0], taken(show(w, token))["strategy"]], [name, name], "the name in the token and the strategy")
        for other in ["unknown", "lasting"]:
            gone(w, resume(w, token.replace(name, other, 1), {"by": "eve"}))
        same(taken(resume(w, token, {"by": "ann"}))["result"], "ann")
    with another(w, 'default_strategy = "plain"\n[flows.strategies.plain]\nkind = "sealed"') as v:
        same(begun(v, v.publish(flow("", ASK)))["token"].split(".")[0], "plain", "the strategy of a workflow that names none")


@promise("E4")
def a_step_swaps_the_strategy_from_the_next_pause_on(w):
    again = [COUNT.replace("id: count", f"id: count{number}") for number in range(3)]
    steps = [ASK, again[0], switch("a", "handle"), THEN, again[1], switch("b", "durable"), THEN.replace("then", "last"), again[2], DONE]
    name = w.publish(flow("sealed", *steps))
    begin = begun(w, name)
    handle = taken(resume(w, begin["token"], {"by": "ann"}))
    same([handle["strategy"], handle["flow"], [row["run"] for row in rows(w, begin["flow"])]], ["handle", begin["flow"], [begin["flow"]]])
    gone(w, resume(w, begin["token"], {"by": "eve"}))
    w.no(404, "showRun", run=begin["flow"])
    durable = taken(resume(w, handle["token"]))
    shown = w.show(begin["flow"])
    same([durable["strategy"], durable["flow"], shown["status"], shown["places"]], ["durable", begin["flow"], "waiting", ["last"]])
    same([entry["version"] for entry in w.history(begin["flow"])], [shown["version"]], "the versions in the history")
    expect(shown["version"] > 1, f"the run begins at version {shown['version']}, not at the flow's")
    for old in [begin["token"], handle["token"]]:
        gone(w, resume(w, old, {"by": "eve"}))
    same(taken(resume(w, durable["token"]))["result"], "ann")
    same([effects(w, name), w.show(begin["flow"])["status"]], [3, "completed"])
    stays = begun(w, w.publish(flow("durable", ASK, switch("a", "handle"), THEN)))
    same(taken(resume(w, stays["token"], {"by": "ann"}))["error"]["code"], "notAFlow", "the error of a durable run that leaves")


@promise("E5")
def the_row_of_a_handle_keeps_who_created_it_and_when(w):
    name, other = w.publish(flow("quick_1-a", ASK, THEN, DONE)), w.other_key("manage")
    begin, theirs = begun(w, name), begun(w, name, as_key=other)
    first, second = rows(w, begin["flow"])[0], rows(w, theirs["flow"])[0]
    same([first[field] for field in ["run", "workflow", "kind"]], [begin["flow"], name, "flow"])
    same([first["updatedAt"], first["updatedBy"]], [first["createdAt"], first["createdBy"]], "the first update")
    same([lifetime(first["createdAt"], first["expiresAt"]), first["expiresAt"]], [3600, begin["expiresAt"]], "the lifetime")
    expect(first["createdBy"] != second["createdBy"] and first["handle"] != second["handle"], f"two handles are alike: {first}, {second}")
    same([row["run"] for row in w.ok("listHandles", workflow=name, createdBy=second["createdBy"])["items"]], [theirs["flow"]], "handles of a key")
    taken(resume(w, begin["token"], {"by": "ann"}))
    after = rows(w, begin["flow"])
    same([(row["createdAt"], row["createdBy"]) for row in after], [(first["createdAt"], first["createdBy"])], "the creation after a rewrite")
    expect(after[0]["updatedAt"] > first["updatedAt"] and after[0]["handle"] != first["handle"], f"the row is not rewritten: {after}")
    same([after[0].get("updatedBy"), lifetime(after[0]["updatedAt"], after[0]["expiresAt"])], [None, 3600], "an update by a token alone")


@promise("E6")
def of_concurrent_resumes_exactly_one_runs_the_step(w):
    name = w.publish(flow("handle", ASK, COUNT, "{ id: bad, type: control.fail, condition: vars.ask.by = 'bad', message: bad }", DONE))
    token, callers = begun(w, name)["token"], 6
    expect(resume(w, token, {"by": "bad"}).refused and effects(w, name) == 0, "a failed step has used its handle or written")
    with concurrent.futures.ThreadPoolExecutor(callers) as pool:
        statuses = [reply.status for reply in pool.map(lambda number: resume(w, token, {"by": f"caller {number}"}), range(callers))]
    others = [status for status in statuses if status in [w.door.expected(409), w.door.expected(410)]]
    same([statuses.count(200 if w.door.name == "http" else 0), len(others), effects(w, name)], [1, callers - 1, 1], f"what {statuses} accepts")
    gone(w, resume(w, token, {"by": "late"}))


@promise("E6")
def a_repeated_start_with_the_same_key_gets_the_same_answer(w):
    name, key = w.publish(flow("handle", ASK, DONE)), w.fresh("key")
    same(begun(w, name, key=key), begun(w, name, key=key), "the answer to a repeated start, with its token")
    same(len(w.ok("listHandles", workflow=name)["items"]), 1, "the number of flows")


@promise("E6", doors=("http",))
def a_repeated_resume_with_the_same_key_gets_the_same_answer(w):
    name, key = w.publish(flow("handle", ASK, COUNT, THEN, DONE)), {"Idempotency-Key": w.fresh("key")}
    token = begun(w, name)["token"]
    first, again = [taken(resume(w, token, {"by": "ann"}, key)) for _ in range(2)]
    same([again, effects(w, name)], [first, 1], "the answer to a repeated resume, with its token, and the effects")
    refused(w, resume(w, token, {"by": "bob"}, key), 422)
    gone(w, resume(w, token, {"by": "ann"}))
    same(taken(resume(w, again["token"]))["result"], "ann")


@promise("E7")
def a_mailed_token_alone_resumes_its_one_pause(w):
    for strategy in ["sealed", "handle", "durable"]:
        to = w.fresh("ann") + "@example.com"
        begin = begun(w, w.publish(flow(strategy, SEND.replace("OUTLET", "mail"), ASK, THEN, DONE)), {"to": to})
        same([begin["watchOnly"], begin["status"]], [True, "waiting"], "what the caller gets")
        mailed = w.wait(lambda: w.mails.links.get(to), "the mail has arrived").removeprefix("/l/")
        expect(mailed.startswith(strategy + ".") and mailed != begin["token"], f"the token in the mail is {mailed}")
        expect("another person must answer" in refused(w, resume(w, begin["token"], {"by": "eve"}), 403), "the caller has resumed the flow")
        same([taken(show(w, begin["token"]))["status"], taken(show(w, mailed))["waits"][0]["place"]], ["waiting", "ask"])
        second = taken(resume(w, mailed, {"by": "ann"}))
        same(second["waits"][0]["place"], "then", "the next pause")
        if strategy != "sealed":
            gone(w, resume(w, mailed))
        same(taken(resume(w, second["token"]))["result"], "ann")


@promise("E8")
def showing_a_link_uses_nothing_up_and_a_dead_token_has_one_answer(w):
    name = w.publish(flow("handle", ASK, COUNT, DONE))
    expired = begun(w, w.publish(flow("brief", ASK, DONE)))["token"]
    begin = begun(w, name)
    before, token = rows(w, begin["flow"]), begin["token"]
    for _ in range(2):
        same(taken(show(w, token))["waits"][0]["place"], "ask", "the place that a token shows")
    page = {"Accept": "text/html", "Content-Type": "application/x-www-form-urlencoded"}
    if w.door.name == "http":
        same(begin["url"], f"{PUBLIC}/l/{token}")
        for method in ["GET", "HEAD", "GET"]:
            read = w.door.request(method, f"/l/{token}", headers=page)
            asks = method == "HEAD" or ('<form method="post"' in read.text and 'name="by"' in read.text)
            expect(read.status == 200 and asks, f"the page is {read}")
    same([rows(w, begin["flow"]), effects(w, name)], [before, 0], "the handle and the effects after reading")
    taken(w.door.request("POST", f"/l/{token}", b"by=ann", page) if w.door.name == "http" else resume(w, token, {"by": "ann"}))
    same(effects(w, name), 1, "the effects of an answer")
    w.wait(lambda: show(w, expired).refused, "the token has expired")
    dead = [token, expired, "handle.unknown"]
    for ask in [lambda one: show(w, one), lambda one: resume(w, one, {"by": "eve"})]:
        replies = [ask(one) for one in dead]
        for reply in replies:
            gone(w, reply)
        texts = {json.dumps({**reply.value, "traceId": None}) if reply.value else reply.text for reply in replies}
        same(len(texts), 1, f"the number of different answers in {texts}")
    if w.door.name == "http":
        for method in ["GET", "POST"]:
            replies = [w.door.request(method, f"/l/{one}", b"by=eve" if method == "POST" else None, page) for one in dead]
            same([len({reply.text for reply in replies}), {reply.status for reply in replies} == {410}], [1, True], "the pages of dead links")
    waiting = w.start(w.publish(flow("", ASK)))
    w.until(waiting, "waiting")
    for ttl in ["0s", "-1s"]:
        expect(w.call("createAnswerLink", run=waiting, ttl=ttl).refused, f"a link may live for {ttl}")


@promise("E9")
def a_bad_input_gets_errors_of_its_fields_and_keeps_the_token(w):
    wrong = "{ id: wrong, type: control.fail, condition: vars.ask.by = 'wrong', errors: [{ pointer: /by, message: not you }] }"
    for strategy in ["sealed", "handle", "durable"]:
        name = w.publish(flow(strategy, ASK, wrong, COUNT, DONE))
        token = begun(w, name)["token"]
        for given, message in [("x", "expected 3 or more characters"), ("wrong", "not you")]:
            why = refused(w, resume(w, token, {"by": given}), 422)
            expect("/by" in why and message in why, f"the wrong answer {given} got {why}")
        same(effects(w, name), 0, "the effects of wrong answers")
        same([taken(resume(w, token, {"by": "ann"}))["result"], effects(w, name)], ["ann", 1], "the result and the effects")


@promise("E10", doors=("http",))
def tokens_travel_in_body_query_header_or_cookie(w):
    path, kind = "/v1/flows/resume", {"Content-Type": "application/json"}
    begin = lambda: begun(w, name)["token"]
    name = w.publish(flow("handle", ASK, DONE))
    for ask in [
        lambda token: (path, {"token": token}, {}),
        lambda token: (f"{path}?token={token}", {}, {}),
        lambda token: (path, {}, {"X-Flow-Token": token}),
    ]:
        address, body, headers = ask(begin())
        same(taken(w.door.request("POST", address, json.dumps({**body, "input": {"by": "ann"}}).encode(), {**kind, **headers}))["result"], "ann")
    two = w.door.request("POST", path, json.dumps({"token": begin()}).encode(), {**kind, "X-Flow-Token": begin()})
    same([two.status, two.value["code"]], [422, "tokensDiffer"], "the answer to two tokens")
    with another(w, 'cookie = "flow"') as v:
        name = v.publish(flow("handle", ASK, THEN, DONE))
        first = v.door.request("POST", f"/v1/flows/{name}", b"{}", {**kind, "Authorization": "Bearer " + v.key})
        cookie, _, attributes = first.headers["set-cookie"].partition("; ")
        expect("token" not in first.value and "url" not in first.value and cookie.startswith("flow=handle."), f"the cookie is {cookie}: {first}")
        expect({"HttpOnly", "SameSite=Strict", "Secure"} <= set(attributes.split("; ")), f"the cookie has the attributes {attributes}")
        second = v.door.request("POST", path, b'{"input": {"by": "ann"}}', {**kind, "Cookie": "a=b; " + cookie})
        following = second.headers["set-cookie"].split("; ")[0]
        expect(following.startswith("flow=handle.") and following != cookie, f"the next cookie is {following}")
        last = v.door.request("POST", path, b"{}", {**kind, "Cookie": following})
        same([taken(last)["result"], last.headers["set-cookie"].split(";")[0]], ["ann", "flow="], "the result and the last cookie")


@promise("E10")
def lists_allow_workflows_and_outlets_carry_links(w):
    blocked = w.publish(flow("handle", ASK), name=f"blocked-{w.door.name}")
    expect(blocked in w.no(403, "startFlow", workflow=blocked, input={}), "the refusal does not name the workflow")
    with another(w, 'allow = ["allowed"]') as v:
        begun(v, v.publish(flow("sealed", ASK), name="allowed"))
        v.no(403, "startFlow", workflow=v.publish(flow("sealed", ASK), name="other"), input={})
    begin = begun(w, w.publish(flow("handle", SEND.replace("OUTLET", "hook"), ASK, DONE)), {"to": "ann"})
    found = lambda: [post for post in w.receiver.posted if json.loads(post[1])["flow"] == begin["flow"]]
    headers, body = w.wait(found, "the webhook has the link")[0]
    sent = json.loads(body)
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    signature = "v1," + base64.b64encode(hmac.new(base64.b64decode(SECRET), signed, hashlib.sha256).digest()).decode()
    same([headers["webhook-signature"], sent["to"], sent["link"]], [signature, "ann", f"{PUBLIC}/l/{sent['token']}"], "what the webhook got")
    same(taken(resume(w, sent["token"], {"by": "ann"}))["result"], "ann")


COLUMNS = """shadows:
  city: { path: vars.ask.city, type: string }
  total: { path: vars.ask.total, type: number, default: 7 }
  paid: { path: vars.ask.paid, type: boolean }
"""
EVER = "{ id: ever, type: control.while, condition: 'true', body: [{ id: ask, type: human.task }] }"
ANSWERS = [
    ({"city": "Bonn", "total": 0, "paid": False}, {"city": "Bonn", "total": 0, "paid": False}),
    ({"city": "", "total": 3}, {"city": "", "total": 3}),
    ({"city": 5, "total": "x", "paid": 1}, {"total": 3}),
    ({"city": 6, "paid": True}, {"total": 3, "paid": True}),
    ({"city": "Bo"}, {"city": "Bo", "total": 3}),
]


@promise("E11")
def shadow_columns_follow_every_write_and_find_runs_and_flows(w):
    runs, flows = w.publish(flow("", EVER, more=COLUMNS)), w.publish(flow("handle", EVER, more=COLUMNS))
    run, begin = w.start(runs), begun(w, flows)
    listed = lambda name, *where: w.ok("listRuns", workflow=name, columns=True, where=list(where))["items"]
    held = lambda name, *where: w.ok("listHandles", workflow=name, where=list(where))["items"]
    same([listed(runs)[0]["columns"], held(flows)[0]["columns"]], [{"total": 7}] * 2, "the columns at the start")
    for answer, columns in ANSWERS:
        w.send(run, "ask", answer)
        w.wait(lambda: listed(runs)[0]["columns"] == columns, f"after {answer} the columns are {columns}")
        begin = taken(resume(w, begin["token"], answer))
        same(held(flows)[0]["columns"], columns, f"the columns of a flow after {answer}")
    expect("no shadow column `town`" in w.no(422, "listRuns", workflow=runs, where=["town=Bonn"]), "an unknown column is not refused")
    for name, found, ids in [(runs, listed, [run]), (flows, held, [begin["flow"]])]:
        hits = [[row.get("id") or row["run"] for row in found(name, *where)] for where in [["city=Bo"], ["city^=B", "total>=3"], ["total<4"]]]
        misses = [found(name, where) for where in ["city=Bonn", "total>3", "paid=false", "city^=C"]]
        same([hits, misses], [[ids] * 3, [[]] * 4], "what the conditions find")
        with open(w.log.name, encoding="utf-8") as log:
            warned = [line for line in log if f"workflow={name} column=city " in line and "wrong type" in line]
        same(len(warned), 1, "the number of warnings of a wrong type")


@promise("E11")
def bad_shadow_columns_are_refused_when_published(w):
    for column, why in [
        ("a: { path: 'lines[0]', type: string }", "not a valid path"), ("a: { path: a..b, type: string }", "not a valid path"),
        ("a: { path: a, type: date }", "unknown variant `date`"), ("a-b: { path: a, type: string }", "not a valid column name"),
        ("a: { path: a, type: number, default: x }", "is not a number"),
    ]:
        name = w.fresh("shadowed")
        found = w.no(422, "publishVersion", document=flow("", ASK, more=f"shadows: {{ {column} }}\n").replace("NAME", name), name=name)
        expect(why in found, f"the refusal of `{column}` is: {found}")


@promise("E12", alone=True)
def heal_refills_the_columns_of_runs_and_flows_in_batches(w):
    columns, number = "shadows: { city: { path: payload.city, type: string }, number: { path: payload.number, type: number } }\n", 5
    names = [w.publish(flow(strategy, ASK)) for strategy in ["", "handle"]]
    for at, city in enumerate(["Bonn", "Ulm", "Bonn", "Ulm", "Bonn"]):
        w.start(names[0], {"city": city, "number": at})
        begun(w, names[1], {"city": city, "number": at})
    for name, strategy in zip(names, ["", "handle"]):
        w.publish(flow(strategy, ASK, more=columns), name=name)
    for name, operation in zip(names, ["listRuns", "listHandles"]):
        found = lambda: len(w.ok(operation, workflow=name, where=["city=Bonn"])["items"])
        same(found(), 0, "the rows with a column before the heal")
        other = w.ok("healColumns", workflow=name, status="completed")
        same([other["runs"], other["changed"]], [0, 0], "a heal of completed runs")
        # The first batch is healed over HTTP, and any door continues from there.
        first = World(w.site, Http).ok("healColumns", workflow=name, batch=2)
        same([first["runs"], first["changed"], found() < 3], [2, 4, True], "the first batch")
        rest = healed(w, name, first["nextCursor"])
        same([rest["runs"], rest["changed"], rest["missed"], found()], [number - 2, 2 * (number - 2), 0, 3], "the other batches")
        again = w.ok("healColumns", workflow=name, where=["city=Bonn"])
        same([again["runs"], again["changed"]], [3, 0], "a second heal of some")


def healed(w, name, cursor):
    """Heals in batches of two from a cursor on. The command repeats the request by itself."""
    if w.door.name == "cli":
        return taken(w.door.command(["maintenance", "heal", name, "--batch", "2", "--from", cursor]))
    sums = {"runs": 0, "changed": 0, "missed": 0}
    while cursor:
        one = w.ok("healColumns", workflow=name, batch=2, cursor=cursor)
        sums, cursor = {key: value + one[key] for key, value in sums.items()}, one.get("nextCursor")
    return sums


@promise("E13", alone=True)
def cleanup_deletes_what_expired_long_enough_ago(w):
    w.ok("cleanUpHandles")
    flows = {strategy: begun(w, w.publish(flow(strategy, ASK, DONE))) for strategy in ["brief", "lasting", "handle"]}
    waiting = w.start(w.publish(flow("", ASK)))
    w.until(waiting, "waiting")
    w.ok("createAnswerLink", run=waiting, ttl="1ms")
    kept = lambda: [strategy for strategy, begin in flows.items() if rows(w, begin["flow"])] + (["link"] if rows(w, waiting) else [])
    w.wait(lambda: show(w, flows["brief"]["token"]).refused, "the token has expired")
    # The server keeps expired handles by its configuration, so its own cleaning deletes none.
    same([w.ok("cleanUp")["handles"], kept()], [0, ["brief", "lasting", "handle", "link"]], "the handles after maintenance")
    for retention in ["never", "1h"]:
        same([w.ok("cleanUpHandles", retention=retention)["count"], len(kept())], [0, 4], f"the handles after a cleanup of {retention}")
    same([w.ok("cleanUpHandles")["count"], kept()], [2, ["lasting", "handle"]], "the handles after a cleanup")
    same("expiresAt" in rows(w, flows["lasting"]["flow"])[0], False, "whether a lasting handle expires")
    gone(w, show(w, flows["brief"]["token"]))
    for strategy in ["lasting", "handle"]:
        same(taken(resume(w, flows[strategy]["token"], {"by": "ann"}))["result"], "ann")
    with another(w, '[flows.strategies.brief]\nkind = "handle"\nttl = "50ms"') as v:
        token = begun(v, v.publish(flow("brief", ASK)))["token"]
        v.wait(lambda: show(v, token).refused, "the token has expired")
        same(v.ok("cleanUp")["handles"], 1, "the handles that maintenance deletes by default")


@promise("G11")
def the_strategy_comes_from_the_document_or_the_configuration(w):
    for strategy, seconds in [("sealed", 15 * 60), ("handle", 7 * 86400), ("durable", 30 * 86400), ("quick_1-a", 3600)]:
        name = w.publish(flow(strategy, ASK, DONE))
        begin, now = begun(w, name), datetime.datetime.now(datetime.timezone.utc)
        same(begin["strategy"], strategy, "the strategy of the document")
        expect(abs(lifetime(now.isoformat(), begin["expiresAt"]) - seconds) < 60, f"a token of {strategy} at {now} is {begin}")
        if strategy == "durable":
            w.until(w.start(name), "waiting")
        else:
            expect(strategy in w.no(409, "startRun", workflow=name), "the refusal of a run does not name the strategy")
    configured = w.publish(flow("sealed", ASK, DONE), name=f"configured-{w.door.name}")
    same(begun(w, configured)["token"].split(".")[0], "quick_1-a", "the strategy of the configuration")


@promise("G11")
def every_open_wait_can_have_an_answer_link(w):
    branches = ["{ id: left, type: human.task }", "{ id: right, type: wait.signal, signal: GO }", "{ id: event, type: wait.event, eventName: COME }"]
    name = w.publish(flow("", f"{{ id: all, type: control.parallel, branches: [{', '.join(f'[{branch}]' for branch in branches)}] }}"))
    run = w.start(name)
    w.wait(lambda: len(w.show(run)["places"]) == 3, "the run waits at three places")
    expect("several open waits" in w.no(422, "createAnswerLink", run=run), "a link to no certain wait was made")
    why = w.no(422, "createAnswerLink", run=run, place="left", send={"outlet": "nowhere", "to": "ann"})
    expect("no outlet `nowhere`" in why, f"the refusal of an unknown outlet is: {why}")
    links = [w.ok("createAnswerLink", run=run, place=place, ttl="1h") for place in ["left", "right", "event"]]
    same([link["outcomes"] for link in links], [["left"], ["GO"], ["COME"]], "the outcomes of the links")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    expect(all(abs(lifetime(now, link["expiresAt"]) - 3600) < 60 for link in links), f"the links do not expire in an hour: {links}")
    for link in links:
        taken(resume(w, link["token"]))
        gone(w, resume(w, link["token"]))
    w.until(run, "completed")
    each = "{ id: each, type: control.forEach, items: [1, 2], parallel: 2, saveAs: all, body: [{ id: ask, type: human.task }] }"
    run = w.start(w.publish(flow("", each, "{ id: done, type: control.return, value: { $expr: vars.all } }")))
    waits = w.wait(lambda: (lambda found: found if len(found) == 2 else None)(w.ok("listWaits", run=run)["items"]), "the loop waits twice")
    for wait in waits:
        link = w.ok("createAnswerLink", run=run, wait=wait["activation"])
        same(link["wait"], wait["activation"], "the wait of the link")
        taken(resume(w, link["token"], {"n": wait["activation"]}))
    w.until(run, "completed")
    w.no(409, "createAnswerLink", run=run)


@promise("G11")
def unknown_strategies_and_outlets_are_errors_of_the_document(w):
    for text, why in [
        (flow("nowhere", ASK), "there is no strategy `nowhere`"), (flow("", ASK, switch("a", "nowhere"), THEN), "there is no strategy `nowhere`"),
        (flow("", SEND.replace("OUTLET", "nowhere"), ASK), "there is no outlet `nowhere`"),
        (flow("", SEND.replace("OUTLET", "mail"), COUNT, ASK), "must be directly before the wait"),
    ]:
        name = w.fresh("unknown")
        found = w.no(422, "publishVersion", document=text.replace("NAME", name), name=name)
        expect(why in found, f"the refusal is: {found}")


@promise("G11")
def a_step_that_swaps_the_strategy_for_no_pause_is_an_error(w):
    name = w.fresh("idle")
    w.no(422, "publishVersion", document=flow("sealed", ASK, switch("a", "handle"), DONE).replace("NAME", name), name=name)


@promise("G11", yaml=False, doors=("cli",))
def a_wrong_setting_of_flows_stops_the_start(w):
    keys, quick = '[flows]\nkey_file = "flow.keys"\n', "[flows.strategies.quick]\nkind = "
    for text, named in [
        (keys + 'default_strategy = "nowhere"\n', "`nowhere`"), (keys + 'workflows = { login = "saeled" }\n', "flows.workflows.login"),
        (keys + "insecure_cookie = true\n", "flows.insecure_cookie"), (keys + 'handle_retension = "1h"\n', "`flows.handle_retension`"),
        ('[flows]\ncookie = "flow"\n', "flows.key_file"), (keys + quick + '"handle"\nonce = true\n', "once"),
        (keys + quick + '"sealed"\nttl = "0s"\n', "flows.strategies.quick.ttl"),
        (keys + '[flows.outlets.mail]\nkind = "email"\n', "server.public_url"),
    ]:
        code, printed = local(folder(w, text), "server", "start", "--listen", "127.0.0.1:0")
        expect(code == 6 and named in printed, f"with {text} the server ended with {code}: {printed}")
