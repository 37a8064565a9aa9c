#!/usr/bin/env python3
"""The main job under fire: real processes killed, frozen and restarted while every word of a text is counted.

One manager (SQLite), four executors on one shared oplog folder, one gateway, lease profile `fast` (a lease of 3 s). While
`shard-executor load` counts the words of the GPL-3, this script breaks things one after the other. Meanwhile one prober per
shard asks an agent on that shard through the gateway again and again: a shard is unserved from the start of the first probe
that failed to the end of the next one that succeeded, so the figures contain a probe's own time-out and pause (SLACK_S).

docs/demo.md derives each bound. Exit code 0 only if the counts are exact, no caller saw an error and every bound held.
"""
import collections
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARIES = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug"
MANAGER, EXECUTOR = BINARIES / "shard-manager", BINARIES / "shard-executor"
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")

SHARDS = 32
LEASE_S = 3.0
STEP_AROUND_S = 0.5
INVOCATIONS = 50_000
PROBE_TIMEOUT_S, PROBE_PAUSE_S = 0.4, 0.1
SLACK_S = PROBE_TIMEOUT_S + PROBE_PAUSE_S
DEADLINE_S = 600

# docs/demo.md says where each comes from.
CRASH_S = LEASE_S + 1.0
FREEZE_S = CRASH_S + STEP_AROUND_S + 0.5
MOVE_S = LEASE_S / 3 + 1.0


def say(text):
    """One line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:6.1f}s] {text}", flush=True)


STARTED = time.monotonic()


class Failed(Exception):
    """The demo cannot go on; says why."""


def wait_until(what, condition, within=60.0):
    """Polls `condition` until it answers something true; returns that."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.05)
    raise Failed(f"waited {within:.0f} s in vain for {what}")


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


class Cluster:
    """Every process of the demo, by name. All are ended by pid in `close`."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}
        self.ports = collections.defaultdict(free_port)
        self.logs = 0

    def address(self, name):
        return f"127.0.0.1:{self.ports[name]}"

    def start(self, name):
        """Starts `manager`, `executor-N` or `gateway`, at the same address each time."""
        settings = [f"listen.grpc={self.address(name)}", f"listen.http={self.address(name + '/http')}"]
        if name == "manager":
            command = [MANAGER, "serve"]
            settings += [f"cluster.shard_count={SHARDS}", "lease.profile=fast", "rebalance.settle=500ms",
                         f"store.url=sqlite:{self.folder}/manager.db"]
        elif name == "gateway":
            command = [EXECUTOR, "route"]
            settings += [f"route.managers={self.address('manager')}"]
        else:
            command = [EXECUTOR, "serve"]
            settings += [f"executor.name={name}", f"executor.managers={self.address('manager')}",
                         "lease.profile=fast", f"oplog.url=sqlite:{self.folder}/oplogs"]
        command += [part for setting in settings for part in ("--set", setting)]
        self.logs += 1
        with open(self.folder / f"{self.logs:02}-{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def signal(self, name, number):
        self.processes[name].send_signal(number)

    def ended(self, name, within=30):
        """The exit code of a process that should end."""
        return self.processes[name].wait(timeout=within)

    def ask(self, *arguments):
        """The manager's answer to a command, as JSON; None when it does not answer."""
        command = [MANAGER, *arguments, "--json", "--manager", self.address("manager"), "--timeout", "2s"]
        done = subprocess.run(command, capture_output=True, check=False)
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return None

    def shards(self):
        """Owner and epoch of every shard."""
        rows = wait_until("the manager's table", lambda: self.ask("shards"))
        return {row["shard"]: (row["owner"], row["epoch"], row["state"]) for row in rows}

    def served(self, executors):
        """Waits until so many executors are registered, own everything evenly and are heard."""
        def balanced():
            status = self.ask("status")
            if not status or len(status["executors"]) != executors or status["troubles"]:
                return None
            counts = [row["owned"] for row in status["executors"]]
            return sum(counts) == SHARDS and max(counts) - min(counts) <= 1
        wait_until(f"{executors} executors to share {SHARDS} shards", balanced)

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.processes.values():
            process.wait()


class Probers:
    """One thread per shard, asking an agent on it through the gateway; remembers when each shard was not served."""

    def __init__(self, port):
        self.port = port
        self.outages = []
        self.failing_since = {}
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.threads = []

    def probe(self, connection, agent):
        """Whether one read was answered, and its shard. Opens the connection anew after a failure."""
        try:
            connection.request("POST", f"/v1/agents/counter/{agent}/get",
                               headers={"Leasehold-Timeout": f"{int(PROBE_TIMEOUT_S * 1000)}ms"})
            answer = connection.getresponse()
            answer.read()
            return answer.status == 200, answer.headers.get("Leasehold-Shard")
        except OSError:
            connection.close()
            return False, None
        except http.client.HTTPException:
            connection.close()
            return False, None

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PROBE_TIMEOUT_S + 2)

    def start(self):
        """Finds an agent for every shard, then begins."""
        connection, agents = self.connect(), {}
        for number in range(100 * SHARDS):
            agent = f"probe-{number}"
            served, shard = self.probe(connection, agent)
            if served:
                agents.setdefault(int(shard), agent)
            if len(agents) == SHARDS:
                break
        else:
            raise Failed("no agent was found for some shard")
        for shard, agent in agents.items():
            thread = threading.Thread(target=self.run, args=(shard, agent), daemon=True)
            thread.start()
            self.threads.append(thread)

    def run(self, shard, agent):
        connection = self.connect()
        while not self.stop.is_set():
            began = time.monotonic()
            served, _ = self.probe(connection, agent)
            with self.lock:
                if not served:
                    self.failing_since.setdefault(shard, began)
                elif shard in self.failing_since:
                    self.outages.append((self.failing_since.pop(shard), time.monotonic(), shard))
            self.stop.wait(PROBE_PAUSE_S)

    def longest(self, since, until):
        """The longest outage that began in this window, and of how many shards."""
        with self.lock:
            if self.failing_since:
                raise Failed(f"shards {sorted(self.failing_since)} are still not served")
            window = [(end - begin, shard) for begin, end, shard in self.outages if since <= begin <= until]
        return max((span for span, _ in window), default=0.0), len({shard for _, shard in window})

    def close(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


class Load(threading.Thread):
    """Counts the text through the gateway, pass after pass, until told to stop; at least INVOCATIONS in the first."""

    def __init__(self, cluster, words):
        super().__init__(daemon=True)
        self.cluster, self.words = cluster, words
        self.repeats, self.summaries, self.failures = 0, [], []
        self.done = threading.Event()
        self.process = None

    def run(self):
        repeat = -(-INVOCATIONS // self.words)
        while not self.failures:
            self.process = subprocess.Popen(
                [EXECUTOR, "load", TEXT, "--gateway", self.cluster.address("gateway"), "--repeat", str(repeat),
                 "--run-id", f"pass-{len(self.summaries)}", "--concurrency", "32", "--timeout", "60s", "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, err = self.process.communicate()
            if self.process.returncode != 0:
                self.failures.append(f"load ended with {self.process.returncode}: {err.decode()[-2000:]}")
                return
            self.summaries.append(json.loads(out))
            self.repeats += repeat
            if self.done.is_set():
                return
            repeat = 1

    def invocations(self):
        return sum(summary["completed"] for summary in self.summaries)


class Events:
    """What is done to the cluster, and what it cost."""

    def __init__(self, cluster, probers, load):
        self.cluster, self.probers, self.load = cluster, probers, load
        self.rows = []

    def run(self, what, bound, action, executors, moved=None):
        """Does `action`, waits until all is well, and notes shards moved and the longest outage against `bound`."""
        if not self.load.is_alive():
            raise Failed("the load ended early: " + "; ".join(self.load.failures))
        say(what)
        before, began = self.cluster.shards(), time.monotonic()
        action()
        self.cluster.served(executors)
        time.sleep(3 * SLACK_S)
        until = time.monotonic()
        after = self.cluster.shards()
        count = sum(1 for shard in before if before[shard][1] != after[shard][1])
        longest, shards = wait_until("every shard to be served", lambda: self.measured(began, until), 15)
        right = longest <= bound + SLACK_S and (moved is None or count == moved)
        self.rows.append((what, count, shards, longest, bound, right))
        say(f"  {count} shards moved; {shards} unserved, the longest for {longest:.2f} s (bound {bound:.2f} s)")

    def measured(self, since, until):
        try:
            return self.probers.longest(since, until)
        except Failed:
            return None

    def all(self):
        cluster = self.cluster

        def stop_and_start():
            cluster.signal("executor-3", signal.SIGTERM)
            if (code := cluster.ended("executor-3")) != 0:
                raise Failed(f"executor-3 ended with {code} on SIGTERM")
            cluster.served(3)

        def freeze():
            cluster.signal("executor-2", signal.SIGSTOP)
            time.sleep(3 * LEASE_S)

        away = 2 * LEASE_S

        def restart_manager():
            cluster.signal("manager", signal.SIGKILL)
            cluster.ended("manager")
            time.sleep(away)
            cluster.start("manager")

        self.run("kill -9 executor-1", CRASH_S, lambda: cluster.signal("executor-1", signal.SIGKILL), 3)
        self.run("start executor-1 again", MOVE_S, lambda: cluster.start("executor-1"), 4)
        self.run("freeze executor-2 for three leases", FREEZE_S, freeze, 3)
        self.run("wake executor-2", MOVE_S, lambda: cluster.signal("executor-2", signal.SIGCONT), 4)
        self.run("SIGTERM executor-3", MOVE_S, stop_and_start, 3)
        self.run("start executor-3 again", MOVE_S, lambda: cluster.start("executor-3"), 4)
        # Every lease runs for at least 2/3 of its length after the last renewal; then shards wait for the manager.
        outage = away - LEASE_S * 2 / 3 + 1.0 + MOVE_S
        self.run("kill -9 the manager, restart it after two leases", outage, restart_manager, 4, moved=0)


def expected_counts(repeats):
    """What tr, sort and uniq count, times the repeats."""
    line = f"tr -cs A-Za-z '\\n' < {TEXT} | tr A-Z a-z | grep . | sort | uniq -c"
    out = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, check=True, text=True).stdout
    return {word: int(count) * repeats for count, word in (row.split() for row in out.splitlines())}


def read_counts(cluster):
    """What the agents say."""
    done = subprocess.run([EXECUTOR, "counts", TEXT, "--gateway", cluster.address("gateway"), "--timeout", "60s"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"counts ended with {done.returncode}: {done.stderr[-2000:]}")
    return {word: int(count) for count, word in (row.split() for row in done.stdout.splitlines())}


def metric(cluster, name, prefix):
    """Counters of one process whose name begins with `prefix`, by their label."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", cluster.ports[name + "/http"], timeout=5)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    except OSError:
        return {}
    rows = (line.rpartition(" ") for line in lines if line.startswith(prefix + "_total{"))
    return {labels.split('"')[1]: int(float(value)) for labels, _, value in rows}


def report(cluster, events, load, wrong):
    """The table. Returns whether everything was right."""
    refusals = collections.Counter()
    for name in (name for name in cluster.processes if name.startswith("executor-")):
        refusals.update(metric(cluster, name, "leasehold_executor_admission_refusals"))
    retries = metric(cluster, "gateway", "router_retries") or metric(cluster, "gateway", "leasehold_router_retries")
    width = max(len(row[0]) for row in events.rows)
    print(f"\n{'event':{width}}  moved  unserved  longest   bound")
    for what, moved, shards, longest, bound, right in events.rows:
        print(f"{what:{width}}  {moved:5}  {shards:8}  {longest:5.2f} s  {bound:5.2f} s  {'ok' if right else 'TOO LONG'}")
    print(f"(longest: as probed, up to {SLACK_S:.1f} s more than it was)\n")
    show = lambda counts: ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items())) or "none"
    print(f"refused at executors' fences (of processes alive at the end): {show(refusals)}")
    print(f"repeated by the gateway:                                      {show(retries)}")
    seconds = sum(summary["seconds"] for summary in load.summaries)
    errors = sum(summary["failed"] for summary in load.summaries) + len(load.failures)
    print(f"invocations: {load.invocations()} in {seconds:.0f} s ({load.invocations() / max(seconds, 1):.0f}/s), "
          f"errors seen by callers: {errors}, words counted wrong: {len(wrong)}")
    for failure in load.failures + [f"{word}: {got} instead of {want}" for word, got, want in wrong[:10]]:
        print("  " + failure)
    return errors == 0 and not wrong and load.invocations() >= INVOCATIONS and all(row[-1] for row in events.rows)


def demo(cluster):
    words = sum(expected_counts(1).values())
    cluster.start("manager")
    for number in range(1, 5):
        cluster.start(f"executor-{number}")
    cluster.start("gateway")
    cluster.served(4)
    say(f"a manager, four executors and a gateway serve {SHARDS} shards; the text has {words} words")
    probers, load = Probers(cluster.ports["gateway/http"]), Load(cluster, words)
    probers.start()
    load.start()
    time.sleep(2)
    events = Events(cluster, probers, load)
    try:
        events.all()
    finally:
        load.done.set()
        probers.close()
    say("everything has been broken; waiting for the load to end")
    load.join(DEADLINE_S)
    if load.is_alive():
        raise Failed(f"the load did not end within {DEADLINE_S} s")
    say("reading back every word's count")
    want, got = expected_counts(load.repeats), read_counts(cluster)
    wrong = [(word, got.get(word), want.get(word)) for word in sorted(want.keys() | got.keys()) if got.get(word) != want.get(word)]
    return report(cluster, events, load, wrong)


def main():
    for needed in (MANAGER, EXECUTOR, TEXT):
        if not needed.exists():
            sys.exit(f"{needed} is missing (run `make demo`, which builds the binaries; the text comes with Debian's base-files)")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="leasehold-demo-"))
    cluster, right = Cluster(folder), False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        right = demo(cluster)
    except Failed as failed:
        print(f"FAILED: {failed}", flush=True)
    finally:
        cluster.close()
        if right:
            shutil.rmtree(folder)
        else:
            print(f"the logs are in {folder}", flush=True)
    print("the demo " + ("passed" if right else "FAILED"))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
