"""The cluster of the fault matrix: each process on a host of its own, in network namespaces, with clocks and a disk that the
script drives."""

import ctypes
import json
import mmap
import os
import platform
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

from demo_cluster import Failed, wait_for
from demo_ha import MANAGERS, MEMBERS, HaCluster

EXECUTORS = ("executor-1", "executor-2", "executor-3")
GATEWAYS = ("gateway-1", "gateway-2")
CONTROL = "control"
HOSTS = (*MEMBERS, *MANAGERS, *EXECUTORS, *GATEWAYS, CONTROL)
PORTS = {"manager": 7470, "executor": 7480, "gateway": 7490}
CLONE_NEWNET = 0x40000000
ALLOWANCE = 0.05  # lease.allowance: large, so that clocks at its ends are seen to differ
LIMIT = 64  # limits.calls, so that a process can be asked for many times what it takes
CLOCKS = (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME)
REALTIME, MONOTONIC, BOOTTIME = range(3)


def run(*command):
    """Runs a command that must succeed; what it prints."""
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    if ended.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {ended.stderr.strip()}")
    return ended.stdout


def enter(namespace):
    """Moves the calling thread, and what it starts from now on, into a network namespace."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise Failed(f"cannot enter the network namespace {namespace}: {os.strerror(ctypes.get_errno())}")


class Network:
    """Hosts on a switch, in namespaces of their own: what is cut is cut by dropped packets, with every socket left open."""

    def __init__(self):
        # Named as tests/harness/src/netns.rs names its own: whoever comes next removes what a killed process left behind.
        self.prefix, self.made = f"leasehold-{os.getpid()}", []
        switch = self.add("switch")
        run("ip", "-n", switch, "link", "add", "name", "switch", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "switch", "up")
        for number, host in enumerate(HOSTS, 1):
            inside, port = self.add(host), f"port{number}"
            run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "net0", "netns", inside)
            run("ip", "-n", switch, "link", "set", port, "master", "switch", "up")
            run("ip", "-n", inside, "address", "add", f"{self.address(host)}/15", "dev", "net0")
            run("ip", "-n", inside, "link", "set", "net0", "up")
            run("ip", "-n", inside, "link", "set", "lo", "up")

    def add(self, host):
        namespace = self.namespace(host)
        run("ip", "netns", "add", namespace)
        self.made.append(namespace)
        return namespace

    def namespace(self, host):
        return f"{self.prefix}-{host}"

    @staticmethod
    def address(host):
        """In 198.18.0.0/15, which is kept for tests (RFC 2544)."""
        return f"198.18.0.{HOSTS.index(host) + 1}"

    def drop(self, host, *rule):
        run("nsenter", f"--net=/run/netns/{self.namespace(host)}", "iptables", "-w", "-A", *rule, "-j", "DROP")

    def cut(self, host, ways=("in", "out")):
        """From now on drops what a host hears, or says, or both."""
        if "in" in ways:
            self.drop(host, "INPUT", "-i", "net0")
        if "out" in ways:
            self.drop(host, "OUTPUT", "-o", "net0")

    def heal(self, host):
        run("nsenter", f"--net=/run/netns/{self.namespace(host)}", "iptables", "-w", "-F")

    def end(self):
        for namespace in self.made:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, timeout=60)


class Control:
    """What one process is shown of time, and how slow its disk is: the file that faults_preload.c reads."""

    def __init__(self, path):
        self.path = path
        with open(path, "w+b") as file:
            file.write(bytes(88))
            file.flush()
            self.map = mmap.mmap(file.fileno(), 88)
        self.reset()

    def reset(self):
        """The machine's clocks, and its disk. For the next life of the process."""
        self.turn, self.delay = 0, 0.0
        self.lines = [(now, now, 0) for now in map(time.clock_gettime_ns, CLOCKS)]
        self.write()

    def write(self):
        struct.pack_into("<Q", self.map, 0, self.turn + 1)
        struct.pack_into("<9qq", self.map, 8, *(part for line in self.lines for part in line), int(self.delay * 1e9))
        self.turn += 2
        struct.pack_into("<Q", self.map, 0, self.turn)

    def change(self, clock, jump=0.0, rate=None, held=0):
        """From now on: ahead by `jump` seconds, gaining `rate` on the machine's clock, less the `held` ns that it stood still."""
        real, shown, gain = self.lines[clock]
        now = time.clock_gettime_ns(CLOCKS[clock])
        span = now - held - real
        shown += span + (span * gain >> 40) + int(jump * 1e9)
        self.lines[clock] = (now, shown, gain if rate is None else round(rate * 2**40))
        self.write()

    def pace(self, rate):
        """All clocks gain `rate`."""
        for clock in range(3):
            self.change(clock, rate=rate)

    def slow(self, delay):
        """Each sync takes so much longer."""
        self.delay = delay
        self.write()


class World(HaCluster):
    """Three etcd members, three managers, three executors, two gateways, and a host for the script and its callers."""

    profile = "lease.profile=fast"
    counts_through = "gateway-2"

    def __init__(self, options, folder):
        if platform.machine() != "x86_64" or os.geteuid():
            raise Failed("the fault matrix needs x86-64 Linux (for faults_preload.c) and root (for network namespaces)")
        super().__init__(options, folder)
        self.network = Network()
        enter(self.network.namespace(CONTROL))
        self.addresses = {manager: f"{self.network.address(manager)}:{PORTS['manager']}" for manager in MANAGERS}
        self.manager_grpc = ",".join(self.addresses.values())
        self.library = self.folder / "faults_preload.so"
        run("cc", "-O2", "-Wall", "-shared", "-fPIC", "-fno-stack-protector", "-fcf-protection=none", "-pthread",
            "-o", self.library, Path(__file__).with_name("faults_preload.c"))  # fmt: skip
        self.controls = {name: Control(self.folder / f"{name}.faults") for name in HOSTS if name != CONTROL}
        self.frozen_at = {}
        self.worlds = 1

    def command(self, name, program):
        """On the host of that name, with clocks and a disk of its own; anything else beside the script."""
        if name not in self.controls:
            return ["nice", "-n", "5", program]
        self.controls[name].reset()
        namespace = f"--net=/run/netns/{self.network.namespace(name)}"
        return ["nsenter", namespace, "env", f"LD_PRELOAD={self.library}",
                f"LEASEHOLD_FAULTS={self.controls[name].path}", "RUST_BACKTRACE=1", program]  # fmt: skip

    def client(self, member):
        return f"http://{self.network.address(member)}:2379"

    def peer(self, member):
        return f"http://{self.network.address(member)}:2380"

    def listens(self, name):
        """The settings of its ports."""
        port, address = PORTS[name.partition("-")[0]], self.network.address(name)
        return f"listen.grpc={address}:{port}", f"listen.http={address}:{port + 1}", f"limits.calls={LIMIT}"

    def manager(self, name):
        self.serve(
            name, "shard-manager", "serve", *self.listens(name), self.profile, f"lease.allowance={ALLOWANCE:.0%}",
            f"store.url=etcd:{','.join(map(self.client, MEMBERS))}", f"cluster.shard_count={self.shards}",
            "leadership.leader_lease_ttl=3s", "store.request_timeout=1s", "leadership.standby_grpc=redirect",
            "store.compaction_retention_revisions=0",
        )  # fmt: skip

    def executor(self, name):
        self.executors[name] = self.serve(
            name, "shard-executor", "serve", *self.listens(name), f"executor.name={name}", self.profile,
            f"lease.allowance={ALLOWANCE:.0%}", f"executor.managers={self.manager_grpc}",
            "executor.handoff_grace=1s", "oplog.url=sqlite:oplogs",
        )  # fmt: skip

    def gateway(self, name):
        settings = (*self.listens(name), f"route.managers={self.manager_grpc}")
        self.gateways[name] = self.serve(name, "shard-executor", "route", *settings)

    def start(self, name):
        """Starts a life of whatever has that name."""
        kind = {"etcd": self.etcd, "manager": self.manager, "executor": self.executor, "gateway": self.gateway}
        kind[name.partition("-")[0]](name)

    def start_all(self):
        for member in MEMBERS:
            self.etcd(member)
        self.wait_for_etcd()
        for name in (*MANAGERS, *EXECUTORS, *GATEWAYS):
            self.start(name)

    def wait_for_etcd(self):
        for member in MEMBERS:
            wait_for(f"{member} to be healthy", lambda: self.etcd_is_healthy(member))

    def freeze(self, name):
        """Stops a process, and notes when every thread of it had stopped."""
        self.signal(name, signal.SIGSTOP)
        wait_for(f"{name} to have stopped", lambda: self.frozen(name), pause=0.005)
        self.frozen_at[name] = time.monotonic_ns()

    def wake(self, name, slept=False):
        """Lets it go on; if it slept, MONOTONIC stood still meanwhile, and BOOTTIME did not."""
        if slept:
            self.controls[name].change(MONOTONIC, held=time.monotonic_ns() - self.frozen_at[name])
        self.signal(name, signal.SIGCONT)

    def wipe(self, snapshot=None):
        """Ends every member, and starts all with nothing, or with what a snapshot remembers."""
        for member in MEMBERS:
            self.signal(member, signal.SIGKILL)
        peers = ",".join(f"{member}={self.peer(member)}" for member in MEMBERS)
        for member in MEMBERS:
            shutil.rmtree(self.folder / member)
            if snapshot:
                run("env", "ETCDCTL_API=3", "etcdctl", "snapshot", "restore", snapshot, "--name", member,
                    "--data-dir", self.folder / member, "--initial-cluster", peers,
                    "--initial-advertise-peer-urls", self.peer(member),
                    "--initial-cluster-token", f"restored-{self.worlds}")  # fmt: skip
        for member in MEMBERS:
            self.etcd(member)
        self.wait_for_etcd()
        self.worlds += 1

    def etcdctl(self, *args):
        """What etcdctl prints, asked of a member that answers."""
        member = next(filter(self.etcd_is_healthy, MEMBERS), MEMBERS[0])
        return run("env", "ETCDCTL_API=3", "etcdctl", "--endpoints", self.client(member), *args)

    def shares(self):
        """Owner and epoch of each shard, as the managers tell."""
        try:
            return json.loads(self.run("shard-manager", "shards", "--json", "--manager", self.manager_grpc))
        except (ValueError, subprocess.SubprocessError):
            return None

    def end(self):
        super().end()
        self.network.end()
