"""What the demos have in common: faults one after the other under load, each with its account, and exact counts at the end."""

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from demo_cluster import WHOLE, Failed, Load, Probes, say, wait_for

SECOND = 1.0  # what L1 gives to noticing, planning, committing, recovering and routing

Event = collections.namedtuple("Event", "name moves moves_most unserved bound refusals")


class Story:
    """The faults one after the other, each with its account. A demo says in `tell` what happens."""

    def __init__(self, cluster, options):
        self.cluster, self.options = cluster, options
        self.probes, self.load = Probes(cluster), Load(cluster, options)
        self.events = []

    def refusals(self):
        """What the gateways were refused, or met on their way, and tried again, by reason."""
        each = (self.cluster.metric(gateway, "router_retries", "reason") for gateway in self.cluster.gateways)
        return sum(each, collections.Counter())

    def during(self, name, fault, executors, moves_most, bound):
        """Runs `fault` (which may say the bound), waits until the cluster is whole, and notes what the probes saw."""
        self.load.must_run()
        say(f"{name} ...")
        begun, refused = time.monotonic(), self.refusals()
        bound = fault() or bound
        wait_for(f"the cluster to heal after {name}", lambda: self.cluster.settled(executors), pause=0.2)
        healed = time.monotonic()
        wait_for("every shard to answer", lambda: self.probes.all_since(healed))
        self.load.must_run()
        unserved, moves = self.probes.between(begun, time.monotonic())
        self.events.append(Event(name, moves, moves_most, unserved, bound, self.refusals() - refused))
        done = self.load.completed()
        say(f"{name}: {moves} shards moved, the longest {unserved:.2f} s not served; {done} words counted so far")

    def run(self, executors):
        """Everything from the first call to the comparison; `tell` is what happens to the cluster in between."""
        wait_for("every shard to be owned", lambda: self.cluster.settled(executors))
        self.probes.find()
        self.probes.start()
        expected = self.words()
        words = sum(expected.values())
        say(f"counting {self.options.text}: {words} words, {len(expected)} of them distinct, again and again")
        self.load.start(repeat=1_000_000)
        self.tell()
        self.probes.stop()

        say(f"letting the load go on to {self.options.invocations} words")
        enough = lambda: self.load.must_run() or self.load.completed() >= self.options.invocations
        wait_for("the load to come so far", enough, WHOLE)
        say("interrupting the load, and resuming it to the end of its pass")
        self.cluster.signal("load", signal.SIGINT)
        self.load.end((0, 75))
        passes = -(-self.load.completed() // words)
        self.load.start(passes)
        self.load.end((0,))
        self.compare(expected, passes)
        self.report(passes * words)

    def words(self):
        """How often each word occurs, as the shell counts it."""
        script = r"""tr -cs A-Za-z '\n' < "$1" | tr A-Z a-z | sed '/^$/d' | sort | uniq -c"""
        command = ["sh", "-c", script, "sh", self.options.text]
        shell = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True)
        return {word: int(count) for count, word in map(str.split, shell.stdout.splitlines())}

    def compare(self, expected, passes):
        """Every agent's count against the shell's."""
        gateway = self.cluster.gateways[self.cluster.counts_through]
        read = self.cluster.run("shard-executor", "counts", self.options.text, "--gateway", gateway, "--json")
        counted = json.loads(read or "{}")
        expected = {word: times * passes for word, times in expected.items()}
        if counted != expected:
            wrong = [word for word in expected.keys() | counted.keys() if counted.get(word) != expected.get(word)]
            some = ", ".join(f"{word} {counted.get(word)} instead of {expected.get(word)}" for word in wrong[:10])
            raise Failed(f"{len(wrong)} words are counted wrong: {some}")
        say(f"all {len(expected)} counts are those of tr | sort | uniq -c, times {passes}")

    def report(self, invocations):
        """The table, and what is wrong with it."""
        broken = []
        rows = [("event", "shards moved", "at most", "not served", "bound", "", "met by the gateways and retried")]
        for event in self.events:
            met = event.moves <= event.moves_most and (event.bound is None or event.unserved <= event.bound)
            broken += [] if met else [event.name]
            bound = "" if event.bound is None else f"{event.bound:.2f} s"
            verdict = "ok" if met else "BROKEN"
            moves = (str(event.moves), str(event.moves_most))
            rows.append((event.name, *moves, f"{event.unserved:.2f} s", bound, verdict, listed(event.refusals)))
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        print()
        for row in rows:
            print("  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[6]]))
        summaries = self.load.summaries
        seconds = sum(each["seconds"] for each in summaries)
        longest = max(each["latency_ms"]["max"] for each in summaries)
        on_the_way = sum((collections.Counter(each["retries_by_reason"]) for each in summaries), collections.Counter())
        rate = invocations / seconds
        print(f"\nload    {invocations} invocations, 0 errors, {rate:.0f}/s, longest {longest / 1000:.1f} s")
        print(f"        repeated on the way to its gateway: {listed(on_the_way)}")
        answered = sum(map(len, self.probes.answers.values()))
        print(f"probes  {answered} durable writes on {self.cluster.shards} shards, 0 errors, each counted once")
        print(f"oplogs  stepped around a frozen writer {self.cluster.generation() - 1} times")
        for name in filter(self.cluster.runs, self.cluster.executors):
            refused = self.cluster.metric(name, "executor_admission_refusals", "reason")
            fenced = self.cluster.metric(name, "executor_fenced_writes", "")
            print(f"{name}  refused: {listed(refused)}; its stale writes refused by storage: {sum(fenced.values())}")
        if broken:
            raise Failed(f"beyond what the protocol allows: {', '.join(broken)}")


def listed(counts):
    """Counts by reason, for people."""
    return ", ".join(f"{reason.upper()} {count}" for reason, count in sorted(counts.items())) or "nothing"


def main(story, cluster, description):
    """Runs the demo; its exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", Path(__file__).parent.parent / "target")
    parser.add_argument("--bin", default=Path(target) / "debug", help="where the binaries stand")
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3", help="the text whose words are counted")
    parser.add_argument("--shards", type=int, default=24, help="how many shards the cluster has, and probes")
    parser.add_argument("--concurrency", type=int, default=32, help="how many calls the load has under way at once")
    parser.add_argument("--invocations", type=int, default=50_000, help="how many invocations at least")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    folder = tempfile.mkdtemp(prefix="leasehold-demo-")
    cluster, keep = cluster(options, folder), True
    try:
        demo = story(cluster, options)
        demo.start()
        demo.run(len(cluster.executors))
        keep = False
        say("the demo has shown what it must")
        return 0
    except (Failed, OSError, subprocess.SubprocessError) as error:
        say(f"FAILED: {error}")
        return 1
    except SystemExit:
        keep = False
        raise
    finally:
        cluster.end()
        if keep:
            print(f"logs and data are kept in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
