"""The faults of the matrix, by row, and how long each may be noticed."""

import collections
import signal
import subprocess
import threading
import time

from demo_cluster import GRACE, PATIENCE, wait_for
from demo_ha import MANAGERS
from faults_wire import Connection
from faults_world import ALLOWANCE, EXECUTORS, LIMIT, PORTS, REALTIME, run

SECOND = 1.0  # what L1 gives to noticing, planning, committing, recovering and routing
LEASE = 3.0  # lease.duration, profile fast
TTL = 3.0  # leadership.leader_lease_ttl
LEFT = LEASE * (1 - ALLOWANCE) * 2 / 3  # what an executor's copy has left at least when renewals begin to fail (R11)
ATTEMPT = 0.5  # one attempt to renew (R13)
FAILOVER = TTL + 1.0  # etcd ends leases each half second; the successor is told, reads the state, and serves
ELECTION = 2.0  # etcd's members begin an election after 1 to 2 s
STORE_CALL = 1.0  # store.request_timeout
SETTLE = 3.0  # rebalance.settle
AWAY = 2 * LEASE  # how long a fault lasts
CALLER = 2.0  # after how long a caller of a gateway that is faulted gives up its attempt
SYNC = 0.2  # by how much a slow disk delays each fsync
HOUR = 3600.0
FLOOD = 10 * LIMIT  # calls under way at once
COLUMNS = ("leader", "standby", "executor", "gateway", "store")

# Name, seconds, why.
Bound = collections.namedtuple("Bound", "name seconds why")
BOUNDS = {
    bound.name: bound
    for bound in (
        Bound("none", SECOND, "Nothing that a call needs is touched. One second for whatever the machine does besides."),
        Bound("lease", LEASE + SECOND,
              "lease.duration + 1 s. The last grant came before the fault, so that on the leader's clock the lease ends at most "
              "3 s after it (R5); L1 gives one second to all else."),
        Bound("unheard", 2 * LEASE + 1 + SECOND,
              "2 × lease.duration + a pass of 1 s + 1 s. The leader may hear it for a while, and stops granting once no grant was "
              "heard for a lease (R46)."),
        Bound("failover", FAILOVER - LEFT + ATTEMPT + SECOND,
              f"{FAILOVER:g} s until a successor serves (leader_lease_ttl 3 s, and 1 s for etcd to end the lease and for it to read "
              f"the state), less the {LEFT:g} s that each executor's lease has left at least (R11, R39), plus one attempt of "
              f"{ATTEMPT:g} s that may just have failed (R13), plus 1 s."),
        Bound("election", ELECTION + STORE_CALL + FAILOVER - LEFT + ATTEMPT + SECOND,
              "At worst etcd takes 2 s to elect a leader and the manager's call to the old one 1 s (store.request_timeout) to be "
              "given up, and the leading manager's lease is lost over it: then a failover as above."),
        Bound("caller", CALLER + SECOND,
              "The 2 s after which these callers give up an attempt and ask the other gateway, plus 1 s."),
        Bound("fault", AWAY + SECOND,
              "As long as the fault lasts (6 s), plus 1 s: no rule takes shards from an executor that keeps its lease."),
        Bound("world", 2 * STORE_CALL + SETTLE + 2 * LEASE + SECOND,
              "On top of the time that etcd (and, when it is restored, the managers) were away: the managers notice and join anew (two calls of 1 s), executors register "
              "anew (at most a lease: a manager that knows them by a backup waits for their old lease), the cold cluster settles for "
              "3 s (R33), storage's refusals raise the epochs with the next renewal (R40, at most a lease), plus 1 s."),
        Bound("disk", LEASE + SECOND,
              "The executor with the slow disk holds the oplogs' write lock for a few syncs of 0.2 s in each of its commits, and "
              "the others wait their turn for it; of etcd, the other two members are a majority. Nobody may be out for longer than a "
              "crash would take."),
    )
}  # fmt: skip
# After a fault is over: whoever was cut off may still be believed to hold a lease (R46), then its share moves back to it.
HEAL = 2 * LEASE + 1 + GRACE + SECOND

ROWS = {
    "crash": "`kill -9`; started again after 6 s. Column store: a member that follows.",
    "freeze": "`SIGSTOP` for 6 s, two leases, then `SIGCONT`.",
    "black-hole": "All packets of its host are dropped, both ways, for 6 s; every socket stays open.",
    "cut-out": "What its host sends is dropped, for 6 s.",
    "cut-in": "What its host is sent is dropped, for 6 s.",
    "slow-disk": "Each fsync and fdatasync takes 0.2 s longer, one after the other, for 6 s.",
    "clock-step": "The wall clock steps an hour ahead, after 3 s two hours back, after 3 s an hour ahead.",
    "clock-rate": f"All its clocks run wrong by half of the allowance (here {ALLOWANCE:.0%}) for 3 s, then by all of it, in the "
    "direction that is dangerous for its part; then its counterpart is cut off for 6 s, so that a lease is decided by both clocks.",
    "sleep": "The machine sleeps for 6 s: process stopped, packets dropped; on waking CLOCK_MONOTONIC has stood still, "
    "CLOCK_BOOTTIME has not.",
    "etcd-leader": "`kill -9` etcd's leader; started again after 6 s.",
    "store-wiped": "All members killed and started with empty folders.",
    "store-restored": "As docs/operations.md says it: managers stopped, members killed, a snapshot restored that is older than the last move "
    "of a shard, members and managers started. Executors live through it.",
    "listener-dead": "What arrives at its gRPC port is dropped for 6 s; the process lives and renews.",
    "overload": f"For 6 s, {FLOOD} calls under way at once at a process that takes {LIMIT} (`limits.calls`); the store: etcd's own "
    "`check perf` with 500 clients.",
}  # fmt: skip


class Cell:
    """One fault at one part: how it is done, and what is due then."""

    def __init__(self, row, column, fault, bound, moves=None, errors=None, heal=HEAL, new_world=False):
        self.row, self.column, self.fault, self.bound = row, column, fault, BOUNDS[bound]
        # How many shards may move at most (None: as many as must), why callers may see errors (None: none may).
        self.moves, self.errors, self.heal, self.new_world = moves, errors, heal, new_world
        self.result = None

    @property
    def name(self):
        return f"{self.row}/{self.column}"


def pause(seconds=AWAY):
    """A fault lasts."""
    time.sleep(seconds)


def crash(world, name):
    world.signal(name, signal.SIGKILL)
    pause()
    world.start(name)


def freeze(world, name):
    world.freeze(name)
    pause()
    world.wake(name)


def cut(*ways):
    def fault(world, name):
        world.network.cut(name, ways)
        pause()
        world.network.heal(name)

    return fault


def slow_disk(world, name):
    world.controls[name].slow(SYNC)
    pause()
    world.controls[name].slow(0)


def clock_step(world, name):
    for jump in (HOUR, -2 * HOUR):
        world.controls[name].change(REALTIME, jump=jump)
        pause(AWAY / 2)
    world.controls[name].change(REALTIME, jump=HOUR)


def clock_rate(sign, counterpart):
    def fault(world, name):
        other = counterpart(world, name)
        for rate in (ALLOWANCE / 2, ALLOWANCE):
            world.controls[name].pace(sign * rate)
            pause(AWAY / 2)
        if other:
            world.network.cut(other)
            pause()
            world.network.heal(other)
        world.controls[name].pace(0)

    return fault


def sleep(world, name):
    world.network.cut(name)
    world.freeze(name)
    pause()
    world.network.heal(name)
    world.wake(name, slept=True)


def listener_dead(world, name):
    world.network.drop(name, "INPUT", "-i", "net0", "-p", "tcp", "--dport", str(PORTS["executor"]))
    pause()
    world.network.heal(name)


def store_wiped(world, name):
    """Says how long etcd was away."""
    began = time.monotonic()
    world.wipe()
    return time.monotonic() - began


def store_restored(world, name):
    snapshot = world.folder / f"snapshot-{world.worlds}.db"
    member = world.etcd_leader()
    run("env", "ETCDCTL_API=3", "etcdctl", "--endpoints", world.client(member), "snapshot", "save", snapshot)
    # A life, and epochs, that the snapshot does not know.
    world.signal(EXECUTORS[1], signal.SIGTERM)
    world.start(EXECUTORS[1])
    wait_for("its share", lambda: world.settled(len(EXECUTORS)), PATIENCE, 0.2)
    began = time.monotonic()
    # In the order of docs/operations.md, "Backup and restore": not under running managers.
    for manager in MANAGERS:
        world.signal(manager, signal.SIGTERM)
    world.wipe(snapshot)
    for manager in MANAGERS:
        world.start(manager)
    return time.monotonic() - began


def flood_agents(target):
    """Far more calls than the part takes, at agents that are on it (executor) or through it (gateway)."""

    def fault(world, name):
        lines = world.folder / "flood.txt"
        lines.write_text("".join(f"flood-{number}\n" for number in range(FLOOD)))
        words = target(world, name)
        load = world.spawn("flood", "shard-executor", "load", lines, "--per", "line", *words, "--concurrency", str(FLOOD),
                           "--repeat", "100000", "--timeout", "60s", "--max-errors", "100000")  # fmt: skip
        pause()
        load.kill()
        load.wait()

    return fault


def flood_calls(path, port):
    """Calls pipelined by four threads, each with its share of the flood under way."""

    def fault(world, name):
        until = time.monotonic() + AWAY

        def keep_calling():
            while time.monotonic() < until:
                try:
                    connection = Connection(world.network.address(name), port, AWAY)
                    while time.monotonic() < until:
                        for _ in range(FLOOD // 4):
                            connection.begin(path)
                        connection.call(path)
                except OSError:
                    pause(0.05)

        threads = [threading.Thread(target=keep_calling, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * AWAY)

    return fault


def flood_store(world, name):
    command = ["nice", "-n", "5", "env", "ETCDCTL_API=3", "etcdctl", "--endpoints", world.client(name), "check", "perf", "--load", "l"]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    world.processes["flood"] = child
    pause()
    child.kill()
    child.wait()
    world.etcdctl("del", "--prefix", "/etcdctl-check-perf/")


ROUTES = "/leasehold.v1.ManagerService/GetRoutingTable"
AT_GATEWAY = "Callers of a gateway that does not answer see their attempt fail; each repeats it at the other one, under its key."


def nobody(world, name):
    return None


def first_executor(world, name):
    return EXECUTORS[0]


def leading_manager(world, name):
    return world.leader()


def cells():
    """Every cell there is, in the order of the table."""
    made = []

    def row(name, fault, **columns):
        for column in COLUMNS:
            if column in columns:
                bound, *more = columns[column]
                options = more[0] if more else {}
                made.append(Cell(name, column, options.pop("fault", fault), bound, **options))

    still, calling = {"moves": 0}, {"moves": 0, "errors": AT_GATEWAY}
    parts = dict(leader=("failover", still), standby=("none", still), executor=("lease",), gateway=("caller", calling))
    store = dict(store=("election", still))
    row("crash", crash, **parts, **store)
    row("freeze", freeze, **parts, **store)
    row("black-hole", cut("in", "out"), **parts, **store)
    row("cut-out", cut("out"), **parts, **store)
    row("cut-in", cut("in"), **parts | {"executor": ("unheard",)}, **store)
    row("slow-disk", slow_disk, executor=("disk", still), store=("disk", still))
    row("clock-step", clock_step, **{column: ("none", still) for column in COLUMNS})
    row("clock-rate", clock_rate(1, nobody), standby=("none", still), gateway=("none", still),
        leader=("lease", {"fault": clock_rate(1, first_executor)}),
        executor=("lease", {"fault": clock_rate(-1, lambda world, name: name)}),
        store=("failover", {"fault": clock_rate(1, leading_manager), "moves": 0}))  # fmt: skip
    row("sleep", sleep, **parts, **store)
    row("etcd-leader", crash, **store)
    row("store-wiped", store_wiped, store=("world", {"new_world": True}))
    row("store-restored", store_restored, store=("world", {"new_world": True, "heal": HEAL + TTL}))
    row("listener-dead", listener_dead, executor=("fault",))
    row("overload", flood_calls(ROUTES, PORTS["manager"]), leader=("fault", still), standby=("none", still),
        executor=("fault", still | {"fault": flood_agents(lambda world, name: ("--manager", world.manager_grpc))}),
        gateway=("fault", still | {
            "fault": flood_agents(lambda world, name: ("--gateway", world.gateways[name])),
            "errors": "A gateway that has all the calls it takes refuses further ones with 429 OVERLOADED; callers repeat."}),
        store=("fault", still | {"fault": flood_store}))  # fmt: skip
    return made
