"""What the demo is made of: the processes of a cluster, callers that probe each shard, and the load."""

import collections
import http.client
import json
import random
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

BEGAN = time.monotonic()
GRACE = 1.0  # executor.handoff_grace, in seconds
PROBE_PAUSE = 0.15
PATIENCE = 60.0  # for each single wait
WHOLE = 480.0  # for the demo: beyond it, it has failed (on two idle cores it takes two to three minutes)


class Failed(Exception):
    """The demo did not show what it must."""


def say(text):
    """One line of progress, with the time since the start."""
    print(f"[{time.monotonic() - BEGAN:6.1f}s] {text}", flush=True)


def wait_for(what, ask, patience=PATIENCE, pause=0.05):
    """The first truthy answer of `ask`; fails when none comes in time, or when the demo as a whole takes too long."""
    until = min(time.monotonic() + patience, BEGAN + WHOLE)
    while not (answer := ask()):
        if time.monotonic() > until:
            raise Failed(f"waited in vain for {what}")
        time.sleep(pause)
    return answer


def allow(seconds):
    """Another bound than that of a demo on all of it."""
    global WHOLE
    WHOLE = seconds


def free_port():
    """A free port below those that the kernel hands out: nobody gets it by chance while its owner is down."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise Failed("no free port between 20000 and 32000")


class Cluster:
    """The processes, by name, and the folder that everything is in."""

    profile = "lease.profile=fast"
    counts_through = "gateway-1"  # where the load goes, and the counts are read

    def __init__(self, options, folder):
        self.bin, self.folder = Path(options.bin).resolve(), Path(folder)
        self.shards = options.shards
        self.processes, self.http, self.lives = {}, {}, collections.Counter()
        self.executors, self.gateways = {}, {}
        self.manager_grpc = f"127.0.0.1:{free_port()}"

    def command(self, name, program):
        """How to start a program for `name`; the process is to be the program itself."""
        return [program]

    def spawn(self, name, binary, *args, stdout=subprocess.DEVNULL):
        """Starts a process that logs to a file of its own, in a session of its own: Ctrl-C reaches only this script."""
        self.lives[name] += 1
        log = self.folder / f"{name}-{self.lives[name]}.log"
        with open(log, "wb") as errors:
            child = subprocess.Popen(
                [*self.command(name, self.bin / binary), "--log-format", "json", *args],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=errors, start_new_session=True,
            )  # fmt: skip
        child.log = log
        self.processes[name] = child
        return child

    def serve(self, name, binary, command, *settings):
        """Starts a server and waits until it says where it serves; its gRPC address."""
        sets = [word for setting in ("listen.http=127.0.0.1:0", *settings) for word in ("--set", setting)]
        child = self.spawn(name, binary, command, "--log", "info", *sets)

        def serving():
            if child.poll() is not None:
                raise Failed(f"{name} ended with {child.returncode}; see {child.log}")
            lines = map(json.loads, re.findall("^.*\n", child.log.read_text(), re.MULTILINE))
            return next((line for line in lines if "grpc" in line and "http" in line), None)

        said = wait_for(f"{name} to serve", serving, pause=0.01)
        self.http[name] = said["http"]
        return said["grpc"]

    def manager(self):
        """Starts the manager, always at the same address and on the same store."""
        self.serve(
            "manager", "shard-manager", "serve", f"listen.grpc={self.manager_grpc}", self.profile,
            "store.url=sqlite:manager.db", f"cluster.shard_count={self.shards}", "rebalance.settle=1s",
        )  # fmt: skip

    def executor(self, name):
        """Starts a life of the executor `name`."""
        self.executors[name] = self.serve(
            name, "shard-executor", "serve", "listen.grpc=127.0.0.1:0", f"executor.name={name}", self.profile,
            f"executor.managers={self.manager_grpc}", f"executor.handoff_grace={GRACE:.0f}s", "oplog.url=sqlite:oplogs",
        )  # fmt: skip

    def gateway(self, name):
        """Starts a gateway."""
        settings = ("listen.grpc=127.0.0.1:0", f"route.managers={self.manager_grpc}")
        self.gateways[name] = self.serve(name, "shard-executor", "route", *settings)

    def runs(self, name):
        """Whether a process has not ended."""
        return self.processes[name].poll() is None

    def signal(self, name, number):
        """Signals a process by its id; for a signal that ends it, its exit code."""
        self.processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            return self.processes[name].wait(PATIENCE)
        return None

    def run(self, binary, *args):
        """What a command prints."""
        command = [self.bin / binary, *args]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE).stdout

    def settled(self, executors):
        """Whether so many executors are registered, hold all shards, and none has two shards more than another."""
        try:
            status = json.loads(self.run("shard-manager", "status", "--json", "--manager", self.manager_grpc))
        except ValueError:
            return False
        held = [executor["owned"] for executor in status["executors"]]
        return len(held) == executors and sum(held) == self.shards and max(held) - min(held) <= 1

    def metric(self, name, metric, label):
        """A counter of a process by the value of its label; empty if the process does not answer."""
        try:
            text = urllib.request.urlopen(f"http://{self.http[name]}/metrics", timeout=2).read().decode()
        except OSError:
            return collections.Counter()
        found = re.findall(rf'^leasehold_{metric}_total(?:{{{label}="(.*?)"}})? (\d+)', text, re.MULTILINE)
        return collections.Counter({value: int(count) for value, count in found if int(count)})

    def generation(self):
        """Which generation the oplogs are in: one more each time that a frozen writer was stepped around."""
        return max(int(file.stem[4:]) for file in (self.folder / "oplogs").glob("gen-*.db"))

    def frozen(self, name):
        """Whether every thread of a process has stopped; a signal does not wait for that."""
        threads = Path(f"/proc/{self.processes[name].pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in threads)

    def writes(self, name):
        """Whether a process is in the middle of a transaction: it has SQLite's write lock, byte 120 of the WAL index."""
        pid, indexes = str(self.processes[name].pid), (self.folder / "oplogs").glob("gen-*.db-shm")
        inodes = {str(index.stat().st_ino) for index in indexes}
        locks = map(str.split, Path("/proc/locks").read_text().splitlines())
        return any(
            lock[1] == "POSIX" and lock[3:5] == ["WRITE", pid] and lock[5].split(":")[2] in inodes
            and int(lock[6]) <= 120 <= int(lock[7]) for lock in locks if len(lock) == 8
        )  # fmt: skip

    def end(self):
        """Ends every process that still runs, by its id."""
        for child in self.processes.values():
            if child.poll() is None:
                child.kill()
                child.wait()


Answer = collections.namedtuple("Answer", "at shard epoch value")


class Probes:
    """One caller per shard: a durable increment of a counter on that shard through the gateway, again and again."""

    def __init__(self, cluster):
        self.cluster, self.stopped = cluster, threading.Event()
        self.answers = {shard: [] for shard in range(cluster.shards)}
        self.errors, self.agents, self.threads = [], {}, []

    def find(self):
        """An agent on each shard, by asking: answers say which shard they come from."""
        connection = self.connect(0)
        for number in range(100 * self.cluster.shards):
            agent = f"probe-{number}"
            self.agents.setdefault(self.ask(connection, agent, "get").shard, agent)
            if len(self.agents) == self.cluster.shards:
                return
        raise Failed("found no agent for some shard")

    def connect(self, shard):
        """Each shard's caller has its gateway, in turn."""
        gateways = list(self.cluster.gateways)
        host, port = self.cluster.http[gateways[shard % len(gateways)]].split(":")
        return http.client.HTTPConnection(host, int(port), timeout=PATIENCE)

    @staticmethod
    def ask(connection, agent, method, **headers):
        """One call: when it was answered, where it ran, and the counter's value."""
        headers = {"Leasehold-Timeout": "30s"} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", f"/v1/agents/counter/{agent}/{method}", headers=headers)
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise Failed(f"probe {agent}: {response.status} {body.decode(errors='replace')}")
        shard, epoch = (int(response.headers[f"Leasehold-{part}"]) for part in ("Shard", "Epoch"))
        return Answer(time.monotonic(), shard, epoch, json.loads(body)["value"])

    def start(self):
        """Starts a thread for each shard."""
        self.threads = [threading.Thread(target=self.probe, args=each, daemon=True) for each in self.agents.items()]
        for thread in self.threads:
            thread.start()

    def probe(self, shard, agent):
        """Calls until told to stop. Each answered call must have counted once: no write lost, none doubled."""
        connection = self.connect(shard)
        while not self.stopped.wait(PROBE_PAUSE):
            try:
                answer = self.ask(connection, agent, "increment")
                self.answers[shard].append(answer)
                if answer.value != len(self.answers[shard]):
                    raise Failed(f"{answer.value} counted after {len(self.answers[shard])} calls")
            except (Failed, OSError, http.client.HTTPException) as error:
                self.errors.append(f"{agent}: {error!r}")
                return

    def stop(self):
        """Ends them, and fails if any caller saw an error."""
        self.stopped.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        if self.errors:
            raise Failed(self.errors[0])

    def all_since(self, instant):
        """Whether every shard has answered a call that began after `instant`."""
        if self.errors:
            raise Failed(self.errors[0])
        return all(len(got) > 1 and got[-2].at > instant for got in self.answers.values())

    def between(self, begun, ended):
        """Of the answers in this time: the longest time from one to the next, and how often a shard's epoch rose."""
        longest, moves = 0.0, 0
        for answers in self.answers.values():
            for before, after in zip(answers, answers[1:]):
                if begun <= after.at < ended:
                    longest = max(longest, after.at - before.at)
                    moves += before.epoch != after.epoch
        return longest, moves


class Load:
    """`shard-executor load`, going through the text again and again, and then to the end of a pass."""

    def __init__(self, cluster, options):
        self.cluster, self.text, self.concurrency = cluster, options.text, options.concurrency
        self.progress = cluster.folder / "progress.json"
        self.summaries = []

    def start(self, repeat):
        """Goes on where the last one stopped, up to so many passes."""
        out = open(self.cluster.folder / f"load-{len(self.summaries) + 1}.json", "w+b")
        child = self.cluster.spawn(
            "load", "shard-executor", "load", self.text, "--gateway", self.cluster.gateways[self.cluster.counts_through], "--json",
            "--timeout", "60s", "--repeat", str(repeat), "--concurrency", str(self.concurrency),
            "--progress", self.progress, stdout=out,
        )  # fmt: skip
        child.out = out

    def completed(self):
        """How many invocations are answered, as the load saved it last (every 2 s)."""
        if not self.progress.exists():
            return 0
        return json.loads(self.progress.read_text())["completed"]

    def must_run(self):
        """Fails if it has ended."""
        if (code := self.cluster.processes["load"].poll()) is not None:
            raise Failed(f"the load ended early, with {code}; see {self.cluster.processes['load'].log}")

    def end(self, accepted):
        """Waits for its end and reads its summary; its exit code must be one of `accepted`."""
        child = self.cluster.processes["load"]
        code = child.wait(max(1.0, BEGAN + WHOLE - time.monotonic()))
        child.out.seek(0)
        summary = json.loads(child.out.read() or b"{}")
        child.out.close()
        if code not in accepted or summary.get("failed") != 0:
            raise Failed(f"the load ended with {code}: {json.dumps(summary)}; see {child.log}")
        self.summaries.append(summary)
