#!/usr/bin/env python3
"""Break one part of a cluster after the other, in every way there is a row for, under load; nothing may come out wrong.

Three etcd members, three managers, three executors that share one folder of oplogs, and two gateways run on hosts of
their own, in network namespaces; clocks and disks are driven by a preloaded library. `docs/faults.md` is this script's own
account (`--write`). Exit code 0: in every cell no invariant was violated, no shard was without service for longer than its
bound, callers saw an error only where the cell says why, and the cluster healed. Needs root, ip, iptables, etcd, cc.
"""

import argparse
import datetime
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from demo_cluster import BEGAN, PATIENCE, Failed, allow, say, wait_for
from demo_ha import MANAGERS, MEMBERS
from demo_story import Story
from faults_cells import BOUNDS, CALLER, COLUMNS, HEAL, ROWS, cells
from faults_watch import Callers, History, Watch
from faults_world import ALLOWANCE, EXECUTORS, GATEWAYS, World

WHOLE = 2400.0  # for everything; on two idle cores it takes about twenty minutes
BUSY = 1.0  # added to each bound: the pause between probes, and a machine that has other work
LOOKS = 5  # how often per second executors must have said what they admit, all together; on an idle machine it is 60
QUIET = 1.5  # for so long after healing no shard may move
DISTINCT, WORDS = 40, 200  # the text whose words are counted; a pass through it takes about a second
DOCUMENT = Path(__file__).parent.parent / "docs" / "faults.md"
NOT_RUN = {
    "slow-disk": "A manager (its state is in etcd) and a gateway keep nothing on a disk.",
    "etcd-leader": "A fault of the store.",
    "store-wiped": "A fault of the store.",
    "store-restored": "A fault of the store.",
    "listener-dead": "An executor is the one that others must reach while it is alive by its own calls. A manager whose port is dead "
    "answers no renewal, as in `cut-in`; a gateway's callers go to the other one.",
}


class Result:
    """What a cell came to."""

    def __init__(self):
        self.violations, self.failures = [], []
        self.unserved = self.bound = self.healed = 0.0
        self.errors, self.moves = 0, 0

    @property
    def passed(self):
        return not self.violations and not self.failures

    def text(self):
        verdict = "" if self.passed else " **FAILED**"
        return f"{len(self.violations)} · {self.unserved:.2f} of {self.bound:.2f} s · {self.errors}{verdict}"


class Matrix(Story):
    """The cells one after the other, on one cluster for as long as it heals."""

    def __init__(self, world, options):
        options.text = str(world.folder / "text")
        letters = random.Random(1)
        some = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(DISTINCT)]
        Path(options.text).write_text("\n".join(letters.choices(some, k=WORDS)) + "\n")
        super().__init__(world, options)
        self.world, self.probes = world, Callers(world)
        self.watch, self.history = Watch(world), History(world)
        self.expected = self.words()

    def begin(self):
        say(f"starting three etcd members, three managers, three executors and two gateways in {self.world.folder}")
        self.world.start_all()
        wait_for("every shard to be owned", lambda: self.world.settled(len(EXECUTORS)), pause=0.2)
        self.probes.find()
        self.probes.start()
        self.watch.start()

    def part(self, cell):
        """Who is faulted."""
        if cell.column == "executor":
            return EXECUTORS[0]
        if cell.column == "gateway":
            return GATEWAYS[0]
        if cell.column == "store":
            leader = wait_for("etcd's leader", self.world.etcd_leader)
            return next(each for each in MEMBERS if each != leader) if cell.row == "crash" else leader
        leader = wait_for("a leader", self.world.leader)
        return leader if cell.column == "leader" else next(each for each in MANAGERS if each != leader)

    def run_cell(self, cell):
        """Does it, and judges it. Fails if the cluster does not come back."""
        cell.result = result = Result()
        name = self.part(cell)
        marks = len(self.probes.met), len(self.probes.broken), len(self.watch.broken)
        asked = self.watch.asked
        self.probes.go_home(CALLER if cell.column == "gateway" else 30.0)
        self.load.start(repeat=1_000_000)
        # Calls that began before, with more patience, are to be over.
        wait_for("every shard to answer", lambda: self.probes.all_since(time.monotonic() - 0.5))
        if cell.new_world:
            self.watch.renew(strict=False)
        begun = time.monotonic()
        say(f"{cell.name} at {name} ...")
        outage = cell.fault(self.world, name) or 0.0
        over = time.monotonic()
        result.bound = cell.bound.seconds + outage + BUSY
        self.heal(cell, over)
        result.healed = time.monotonic() - over
        if cell.new_world:
            self.watch.renew(strict=True)
            self.history.renew()
        self.stays(result)
        result.unserved, result.moves = self.probes.between(begun, time.monotonic())
        self.finish_load()
        result.violations += [seen.what for seen in self.probes.broken[marks[1] :] + self.watch.broken[marks[2] :]]
        result.violations += self.history.check()
        result.errors = len(self.probes.met) - marks[0]
        if (asked := self.watch.asked - asked) < LOOKS * (time.monotonic() - begun):
            result.failures.append(f"executors said only {asked} times what they admit: too little to judge by")
        self.judge(cell, self.probes.met[marks[0] :])

    def heal(self, cell, over):
        patience = cell.heal + BUSY
        for member in MEMBERS:
            wait_for(f"{member} to be healthy", lambda: self.world.etcd_is_healthy(member))
        wait_for("the cluster to be whole", lambda: self.world.settled(len(EXECUTORS)), PATIENCE, 0.2)
        if (took := time.monotonic() - over) > patience + (cell.bound.seconds if cell.new_world else 0):
            cell.result.failures.append(f"healed only after {took:.1f} s, not {patience:.1f} s")
        healed = time.monotonic()
        wait_for("every shard to answer", lambda: self.probes.all_since(healed))

    def stays(self, result):
        """Whole, nothing moves any more."""
        before = wait_for("the shards", self.world.shares)
        time.sleep(QUIET)
        if (after := wait_for("the shards", self.world.shares)) != before:
            result.failures.append(f"shards moved after it had healed: {before} became {after}")

    def finish_load(self):
        """To the end of its pass, so that every word was counted equally often."""
        words = sum(self.expected.values())
        self.load.must_run()
        self.world.signal("load", signal.SIGINT)
        self.load.end((0, 75))
        passes = -(-self.load.completed() // words)
        self.load.start(passes)
        self.load.end((0,))
        self.compare(self.expected, passes)

    def judge(self, cell, met):
        result = cell.result
        if result.unserved > result.bound:
            result.failures.append(f"a shard was not served for {result.unserved:.2f} s, not {result.bound:.2f} s")
        if met and not cell.errors:
            result.failures.append(f"callers saw {len(met)} errors, such as {met[0].what}")
        if cell.moves is not None and result.moves > cell.moves:
            result.failures.append(f"{result.moves} shards moved, and none had to")
        verdict = "ok" if result.passed else f"FAILED: {'; '.join(result.violations + result.failures)}"
        say(f"{cell.name}: {result.text()}; {result.moves} moves, healed after {result.healed:.1f} s: {verdict}")

    def end(self):
        self.probes.stopped.set()
        self.watch.stop()

    def check_oplogs(self):
        """The fence's own promises, from the store of the oplogs."""
        command = [self.world.bin / "shard-executor", "oplog", "check", "--url", "sqlite:oplogs"]
        ended = subprocess.run(command, cwd=self.world.folder, capture_output=True, text=True, timeout=2 * PATIENCE)
        say(f"oplog check: {(ended.stdout + ended.stderr).strip()}")
        if ended.returncode:
            raise Failed(f"oplog check ended with {ended.returncode}")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR", Path(__file__).parent.parent / "target")
    parser.add_argument("--bin", default=Path(target) / "debug", help="where the binaries stand")
    parser.add_argument("--shards", type=int, default=12, help="how many shards the cluster has, and probes")
    parser.add_argument("--concurrency", type=int, default=4, help="how many calls the load has under way at once")
    parser.add_argument("--only", metavar="ROW/COLUMN,…", help="these cells alone; a row or a column alone is all of it")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and data even if all is well")
    parser.add_argument("--write", action="store_true", help="write docs/faults.md, when every cell was run")
    return parser, parser.parse_args()


def chosen(parser, options):
    """The cells to run."""
    every = cells()
    if not options.only:
        return every
    if options.write:
        parser.error("--write writes the whole matrix: leave --only away")
    wanted = options.only.split(",")
    known = {word for cell in every for word in (cell.name, cell.row, cell.column)}
    if unknown := [word for word in wanted if word not in known]:
        parser.error(f"--only: there is no {unknown[0]}; rows are {', '.join(ROWS)}, columns {', '.join(COLUMNS)}")
    return [cell for cell in every if {cell.name, cell.row, cell.column} & set(wanted)]


def table(run):
    """As markdown, with a footnote for each thing that needs one."""
    notes, by_name, there = [], {cell.name: cell for cell in run}, {cell.name for cell in cells()}

    def note(text):
        if text not in notes:
            notes.append(text)
        return f"[^{notes.index(text) + 1}]"

    lines = [f"| fault | {' | '.join(COLUMNS)} |", f"| --- | {' | '.join('---' for _ in COLUMNS)} |"]
    for row in ROWS:
        texts = []
        for column in COLUMNS:
            cell = by_name.get(f"{row}/{column}")
            if cell and cell.result:
                texts.append(cell.result.text() + (note(cell.errors) if cell.errors and cell.result.errors else ""))
            else:
                texts.append("not run" if f"{row}/{column}" in there else f"-{note(NOT_RUN[row])}")
        lines.append(f"| `{row}` | {' | '.join(texts)} |")
    return "\n".join(lines), "\n".join(f"[^{number}]: {text}" for number, text in enumerate(notes, 1))


def machine():
    model = next((line.partition(":")[2].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = int(open("/proc/meminfo").readline().split()[1]) // 1024
    return f"{os.cpu_count()} × {model}, {memory} MiB, Linux {platform.release()}"


def document(run, loads, counts):
    """docs/faults.md."""
    filled, notes = table(run)
    took = time.monotonic() - BEGAN
    rows = "\n".join(f"| `{row}` | {text} |" for row, text in ROWS.items())
    bounds = "\n".join(
        f"| {bound.name} | {bound.seconds:.2f} s | {bound.why} | {', '.join(f'`{c.name}`' for c in run if c.bound is bound)} |"
        for bound in BOUNDS.values()
    )
    return f"""# The fault matrix

<!-- Written by `make faults`, whole. What is to be said differently is to be changed in scripts/faults*.py. -->

`make faults` starts three etcd members, three managers, three executors on one folder of oplogs and two gateways, each on a host of its own (network
namespaces), breaks one part after the other, and writes this page. A cell is: **violations · the longest that any shard was not served, of its bound · errors that callers
saw**. A dash says why there is nothing to break.

{datetime.date.today()}, {machine()}. {len(run)} cells in {took / 60:.0f} minutes, debug build; {counts}. Load average {loads[0]:.1f} when it began and {loads[1]:.1f} at its end: on
two processors, anything well above 2 means that the machine had other work, and the figures are from a busy machine.

{filled}

{notes}

## What is checked in each cell
| what | how |
| --- | --- |
| no acknowledged write lost or doubled | A caller per shard increments a counter through a gateway, every 0.15 s; the value must be the number of answered calls, each time. `shard-executor load` counts the words of a text meanwhile, to the end of a pass; the counts must be those of `tr`, `sort`, `uniq -c`. |
| one executor per shard (S1, S2) | Every executor is asked 20 times a second, on its own host, what it admits (`Inspect`). No shard may be admitted by two at once, none at a lower epoch after a higher one was seen, no epoch by two lives. |
| one leader's writes | From etcd's own history of the state: of the writes in their order, neither leadership nor revision goes back. |
| not served | The longest time from one answered increment of a shard to its next, pauses included. |
| callers' errors | An attempt that ended without an answer, or with a refusal. It is repeated at the other gateway under its idempotency key. |
| healing | Every executor registered, every shard owned and answering, none with two shards more than another, within {HEAL:g} s after the fault; then no shard moves for {QUIET} s. |
| the fence (S6) | At the end `shard-executor oplog check` reads the oplogs. |

In the rows `store-wiped` and `store-restored` an executor of the old world may *admit* for up to a lease beside its successor, and not write (docs/operations.md, "Backup and
restore"); there the counters, the counts and the oplogs are what must be right.

## The rows
| row | what is done |
| --- | --- |
{rows}

Clocks and disks are those of one process: `scripts/faults_preload.c` takes the place of the vDSO's `clock_gettime` in it and holds its fsync calls. The machine's own clock is not touched.

## The bounds
To each, {BUSY:g} s is added for the pause between two probes and for a machine with other work. All follow from `lease.profile=fast` (a lease of 3 s), `lease.allowance={ALLOWANCE:.0%}`,
`leadership.leader_lease_ttl=3s`, `store.request_timeout=1s`, `executor.handoff_grace=1s`.

| bound | seconds | why | cells |
| --- | --- | --- | --- |
{bounds}
"""


def run_all(options, run):
    """Every cell, on a fresh cluster after one that did not heal; whether all is well, and what was counted."""
    left, well, probed, asked = list(run), True, 0, 0
    while left:
        folder = tempfile.mkdtemp(prefix="leasehold-faults-")
        world = matrix = None
        keep = True
        try:
            world = World(options, folder)
            matrix = Matrix(world, options)
            matrix.begin()
            while left:
                matrix.run_cell(left.pop(0))
            matrix.probes.stop()
            matrix.check_oplogs()
            keep = options.keep or not all(cell.result.passed for cell in run if cell.result)
        except (Failed, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            well = False
            say(f"FAILED: {error!r}")
            broken = [cell for cell in run if cell.result]
            if not broken:
                return False, ""
            broken[-1].result.failures.append(str(error))
        except SystemExit:
            keep = False
            raise
        finally:
            if matrix:
                matrix.end()
                probed += sum(matrix.probes.counted.values())
                asked += matrix.watch.asked
            if world:
                world.end()
            if keep:
                print(f"logs and data are kept in {folder}", flush=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)
    return well, f"{probed} calls of the probes and {asked} questions to executors were answered"


def main():
    parser, options = parsed()
    run = chosen(parser, options)
    print(f"{len(run)} cells", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    allow(WHOLE)
    before = os.getloadavg()[0]
    well, counts = run_all(options, run)
    print("\n" + "\n\n".join(table(run)), flush=True)
    if options.write:
        DOCUMENT.write_text(document(run, (before, os.getloadavg()[0]), counts))
    failed = [cell for cell in run if not (cell.result and cell.result.passed)]
    for cell in failed:
        why = cell.result.violations + cell.result.failures if cell.result else ["not run"]
        print(f"{cell.name}: {'; '.join(why)}", flush=True)
    if failed or not well:
        say(f"FAILED: {len(failed)} of {len(run)} cells")
        return 1
    say(f"{len(run)} cells: no violation, everything within its bound")
    return 0


if __name__ == "__main__":
    sys.exit(main())
