"""Follows the first pages word for word, as a new user does: README.md, docs/getting-started.md and docs/postgres.md.

The commands run under an account that has nothing: an empty home, no settings, and no rights of the administrator if this process
has them. The pages' commands that start a server run in the background, everything else runs as it is written. PostgreSQL has the
configuration of a new installation, where a role may not create tables in the schema `public`, and needs a password.

Uses the Python standard library only.
"""

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import pwd
import re
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

PAGES = ["README.md", "docs/getting-started.md", "docs/postgres.md"]
# Commands that are not run, each with the reason.
LEFT_OUT = {"cargo xtask test": "it runs this proof"}
# Beginnings of the commands that start a server and do not end.
SERVERS = ("cargo xtask dev", "stepwell dev", "stepwell server start")
ADDRESS = "127.0.0.1:7077"
# The program that is built already takes the place of cargo.
CARGO = '#!/bin/sh\n[ "$1 $2" = "xtask dev" ] || { echo "cargo $*: not on this account" >&2; exit 1; }\nshift 2\nexec stepwell dev "$@"\n'
# Starts a server in the background, and waits until it has printed its address.
BACKGROUND = """: > printed
{command} > printed 2> messages & SERVER=$!
until [ -s printed ]; do kill -0 $SERVER || {{ cat messages >&2; exit 1; }}; sleep 0.02; done
"""
# A script that fails leaves no server behind.
CLEANUP = "trap '[ -z \"${SERVER:-}\" ] || { kill -KILL $SERVER && wait $SERVER; } 2> /dev/null || true' EXIT"
# What each page must print, so that a command that does nothing is noticed.
PRINTS = {
    "README.md": [],
    "docs/getting-started.md": ['"status":"failed"', '"status":"completed"', "warm hello, eve", "Nothing is stuck."],
    "docs/postgres.md": ["CREATE DATABASE", "CREATE ROLE", "CREATE SCHEMA", "Nothing is stuck."],
}
LIMIT = 120
CLONE_NEWNET = 0x40000000


def private_network():
    """Gives this process a network of its own, where the ports of the pages are free. Returns False if it may not."""
    if os.geteuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # SIOCSIFFLAGS: up and running.
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
    return True


def free_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % listener.getsockname()[1]


def blocks(text):
    """Returns the blocks of shell commands of a page."""
    return [block for _, block in re.findall(r"^```(sh|console)\n(.*?)^```$", text, re.M | re.S)]


class Account:
    """An account of this machine with an empty home, and with `stepwell` and `cargo` in its path."""

    def __init__(self, folder, program, is_private):
        self.folder = folder
        os.chmod(folder, 0o755)
        # Ids that no other account has.
        self.ids = {"user": 61_000 + os.getpid() % 1_000, "group": 61_000, "extra_groups": []} if os.geteuid() == 0 else {}
        self.programs = folder / "programs"
        self.programs.mkdir()
        shutil.copy(program, self.programs / "stepwell")
        (self.programs / "cargo").write_text(CARGO)
        for name in ["stepwell", "cargo"]:
            os.chmod(self.programs / name, 0o755)
        self.address = ADDRESS if is_private else free_address()

    def home(self, name):
        home = self.folder / name
        home.mkdir()
        if self.ids:
            os.chown(home, self.ids["user"], self.ids["group"])
        return home

    def environment(self, home, more=None):
        own = {"HOME": str(home), "PATH": f"{self.programs}:/usr/bin:/bin", "LANG": "C.UTF-8"}
        if self.address != ADDRESS:
            own |= {"STEPWELL_SERVER": f"http://{self.address}", "STEPWELL_SERVER__LISTEN": self.address}
        return {**own, **(more or {})}

    def run(self, home, script, more=None):
        """Runs a script. Returns its exit code and everything that it has printed."""
        command = ["timeout", "-k", "5", str(LIMIT), "bash", "-c", script.replace(ADDRESS, self.address)]
        done = subprocess.run(
            command, cwd=home, env=self.environment(home, more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, **self.ids,
        )
        return done.returncode, done.stdout


def named_user():
    """Returns the id of a user without rights."""
    for name in ["postgres", "daemon"]:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise SystemExit("there is neither a user postgres nor a user daemon: create one")


class Postgres:
    """A new PostgreSQL server, as a system's package sets it up."""

    def __init__(self, account, is_private):
        found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
        initdb = str(found[-1]) if found else shutil.which("initdb")
        if not initdb:
            raise SystemExit("`initdb` is not installed: install the PostgreSQL server")
        programs = pathlib.Path(initdb).parent
        # PostgreSQL refuses to run as the administrator, or as a user without a name.
        ids = {**account.ids, "user": named_user(), "group": pwd.getpwuid(named_user()).pw_gid} if account.ids else {}
        self.folder = account.folder / "postgres"
        self.folder.mkdir(mode=0o700)
        password = secrets.token_hex(8)
        (self.folder / "password").write_text(password)
        if ids:
            for path in [self.folder, self.folder / "password"]:
                os.chown(path, ids["user"], ids["group"])
        a, b, c = os.getpid().to_bytes(4, "big")[1:]
        self.host = "localhost" if is_private else f"127.{64 + a % 64}.{b}.{max(c, 2)}"
        data = self.folder / "data"
        initialise = [initdb, "-D", data, "-U", "postgres", "--auth=scram-sha-256", f"--pwfile={self.folder}/password", "--no-sync", "-E", "UTF8", "--locale=C"]
        quiet = {"cwd": self.folder, "stdin": subprocess.DEVNULL, "env": {"PATH": "/usr/bin:/bin"}, **ids}
        subprocess.run(initialise, check=True, stdout=subprocess.DEVNULL, **quiet)
        log = open(self.folder / "log", "w")
        serve = [programs / "postgres", "-D", data, "-k", self.folder, "-h", "127.0.0.1" if is_private else self.host, "-c", "fsync=off"]
        self.child = subprocess.Popen(serve, stdout=log, stderr=log, **quiet)
        self.environment = {"PGHOST": self.host, "PGUSER": "postgres", "PGPASSWORD": password, "PGCONNECT_TIMEOUT": "5"}
        deadline = time.monotonic() + 60
        while True:
            try:
                self.version = self.ask("postgres", "show server_version")
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline or self.child.poll() is not None:
                    raise SystemExit(f"PostgreSQL did not start: {(self.folder / 'log').read_text()}")
                time.sleep(0.05)

    def ask(self, database, sql):
        """Returns the answer to a statement of the administrator."""
        command = ["psql", "-XAt", "-d", database, "-c", sql]
        environment = {"PATH": "/usr/bin:/bin", **self.environment}
        return subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout.strip()

    def end(self):
        self.child.terminate()
        self.child.wait()


def script_of(text):
    """Returns a page as one script, and the number of its commands."""
    lines, commands, has_server = ["set -euo pipefail", CLEANUP], 0, False
    for block in blocks(text):
        inside = None
        for line in block.splitlines():
            words = line.split("#")[0].strip()
            if inside is not None:
                inside = None if line == inside else inside
            elif words in LEFT_OUT:
                continue
            elif words.startswith(SERVERS):
                lines.append(BACKGROUND.format(command=words))
                commands, has_server = commands + 1, True
                continue
            elif words and not words.endswith("\\"):
                commands += 1
            if match := re.search(r"<<'(\w+)'", line):
                inside = match[1]
            lines.append(line)
    # A server that was asked to stop ends without an error.
    lines += ["env > environment"] + (["kill -TERM $SERVER", "wait $SERVER"] if has_server else [])
    return "\n".join(lines) + "\n", commands


def least_privilege(postgres):
    """Returns the rights that the roles have and should not have."""
    checks = {
        "a role may do what only an administrator may": "select count(*) from pg_roles where rolname like 'stepwell%' and (rolsuper or rolcreatedb or rolcreaterole or rolbypassrls)",
        "the engine owns tables": "select count(*) from pg_class where relowner = 'stepwell_engine'::regrole",
        "the engine may create tables": "select has_schema_privilege('stepwell_engine', 'stepwell', 'create')::int",
        "the owner may create tables in public": "select has_schema_privilege('stepwell_owner', 'public', 'create')::int",
        "there are tables in public": "select count(*) from pg_tables where schemaname = 'public'",
    }
    return [what for what, sql in checks.items() if postgres.ask("app", sql) != "0"]


def again(account, home, more):
    """Starts the server of a page once more, without the owner's URL, and publishes and runs a workflow."""
    variables = dict(line.split("=", 1) for line in (home / "environment").read_text().splitlines() if line.startswith("STEPWELL_DATABASE__"))
    variables.pop("STEPWELL_DATABASE__MIGRATE_URL")
    workflow = "name: hello\nsteps: [{ id: done, type: control.return, value: hello }]\n"
    (home / "hello.yaml").write_text(workflow)
    script = f"set -euo pipefail\n{CLEANUP}\n" + BACKGROUND.format(command="stepwell server start --create-api-key admin.key")
    script += "stepwell workflow apply hello.yaml --api-key-file admin.key\n"
    script += "RUN=$(stepwell run start hello -o id --api-key-file admin.key)\nstepwell run wait \"$RUN\" --for 30s --api-key-file admin.key\nkill -TERM $SERVER\nwait $SERVER\n"
    return account.run(home, script, {**more, **variables})


class Proof:
    def __init__(self, root, folder, program):
        self.root, self.findings = root, []
        self.is_private = private_network()
        self.account = Account(folder, program, self.is_private)
        self.postgres = Postgres(self.account, self.is_private)
        self.commands = 0

    def text(self, page):
        return (self.root / page).read_text()

    def follow(self, page, text, name):
        """Runs a page in a new home. Returns what went wrong, or nothing."""
        home = self.account.home(name)
        more = self.postgres.environment if "postgres" in page else None
        script, commands = script_of(text)
        code, printed = self.account.run(home, script, more)
        self.commands += commands
        if code != 0:
            return f"{page}: exit code {code}: {printed[-1500:]}"
        for wanted in PRINTS[page]:
            if wanted not in printed:
                return f"{page}: `{wanted}` was not printed: {printed[-1500:]}"
        if "postgres" in page:
            if wrong := least_privilege(self.postgres):
                return f"{page}: {wrong}"
            code, printed = again(self.account, home, more)
            if code != 0:
                return f"{page}: the server does not start without the owner: {printed[-1500:]}"
        return None

    def plants(self):
        """Changes the pages, so that a reader would fail. Returns how each change was noticed, and those that were not."""
        getting, postgres = self.text(PAGES[1]), self.text(PAGES[2])
        changes = {
            "a placeholder": (PAGES[1], re.sub(r"^RUN=\$\(sed.*$", "RUN=…", getting, count=1, flags=re.M)),
            "an unknown flag": (PAGES[1], getting.replace("stepwell doctor ", "stepwell doctor --all-of-it ", 1)),
            "no schema for the owner": (PAGES[2], re.sub(r"^create schema .*\n", "", postgres, flags=re.M)),
            "no right password": (PAGES[2], postgres.replace("engine:$ENGINE_PASSWORD", "engine:$OWNER_PASSWORD", 1)),
        }
        noticed, missed = {}, []
        for number, (what, (page, text)) in enumerate(changes.items()):
            if text == self.text(page):
                missed.append(f"{what}: the page has no such text")
                continue
            if page == PAGES[2]:
                self.postgres.ask("postgres", "drop database if exists app with (force)")
                self.postgres.ask("postgres", "drop role if exists stepwell_owner, stepwell_engine")
            before = self.commands
            finding = self.follow(page, text, f"plant-{number}")
            if finding is None:
                missed.append(what)
            else:
                noticed[what] = finding.strip().splitlines()[-1][:200]
            self.commands = before
        return noticed, missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stepwell", required=True)
    parser.add_argument("--root", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stepwell-first-") as folder:
        proof = Proof(arguments.root, pathlib.Path(folder), arguments.stepwell)
        try:
            times = {}
            for number, page in enumerate(PAGES):
                since = time.monotonic()
                if finding := proof.follow(page, proof.text(page), f"home-{number}"):
                    proof.findings.append(finding)
                times[page] = round(time.monotonic() - since, 2)
            noticed, missed = proof.plants()
        finally:
            proof.postgres.end()
        line = {
            "pages": len(PAGES), "commands": proof.commands, "findings": len(proof.findings), "plants": len(noticed), "missed": missed,
            "postgres": proof.postgres.version, "ownNetwork": proof.is_private, "ownUser": bool(proof.account.ids),
            "noticed": noticed, "pageSeconds": times, "seconds": round(time.monotonic() - begun, 2),
        }
    for finding in proof.findings:
        print(finding, file=sys.stderr)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
