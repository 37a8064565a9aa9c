#!/usr/bin/env python3
"""Kill leaders, etcd members and executors of a highly available cluster under load; every count must come out exact.

Three etcd members, three managers, five executors that share one directory of oplogs, and two gateways run as processes
on loopback. `docs/demo.md` says what each fault is and how its bound follows from the protocol. Exit code 0: all counts
were exact, no caller saw an error, no manager's death moved a shard, no executor was reaped, and no shard was without
service for longer than the protocol allows. Every process is ended; the folder is removed, or kept when something failed.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from demo_cluster import GRACE, PATIENCE, Cluster, Failed, free_port, say, wait_for
from demo_story import SECOND, Story, main

MANAGERS = ("manager-1", "manager-2", "manager-3")
EXECUTORS = tuple(f"executor-{number}" for number in range(1, 6))
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")


class HaCluster(Cluster):
    """A cluster whose managers stand by for each other, on etcd."""

    # A lease of 12 s: two thirds of it outlast a failover.
    profile = "lease.profile=lan"

    def __init__(self, options, folder):
        super().__init__(options, folder)
        self.client_ports = {member: free_port() for member in MEMBERS}
        self.peer_ports = {member: free_port() for member in MEMBERS}
        self.addresses = {manager: f"127.0.0.1:{free_port()}" for manager in MANAGERS}
        self.manager_grpc = ",".join(self.addresses.values())
        self.reaped = 0

    def client(self, member):
        """Where a member serves."""
        return f"http://127.0.0.1:{self.client_ports[member]}"

    def peer(self, member):
        """Where the other members reach it."""
        return f"http://127.0.0.1:{self.peer_ports[member]}"

    def etcd(self, member):
        """Starts a member; its data is kept from one life to the next."""
        self.lives[member] += 1
        client, peer = self.client(member), self.peer(member)
        peers = ",".join(f"{each}={self.peer(each)}" for each in MEMBERS)
        with open(self.folder / f"{member}-{self.lives[member]}.log", "wb") as log:
            self.processes[member] = subprocess.Popen(
                [*self.command(member, "etcd"), "--name", member, "--data-dir", self.folder / member, "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", peers, "--initial-cluster-state", "new"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def etcd_is_healthy(self, member):
        """Whether a member answers a linearizable read, so that it has a leader."""
        try:
            with urllib.request.urlopen(f"{self.client(member)}/health", timeout=2) as answer:
                return json.load(answer)["health"] == "true"
        except (OSError, ValueError):
            return False

    def etcd_leader(self):
        """The member that leads."""
        for member in filter(self.runs, MEMBERS):
            try:
                text = urllib.request.urlopen(f"{self.client(member)}/metrics", timeout=2).read().decode()
            except OSError:
                continue
            if "etcd_server_is_leader 1" in text:
                return member
        return None

    def manager(self, name):
        """Starts a replica, always at the same address."""
        endpoints = ",".join(map(self.client, MEMBERS))
        self.serve(
            name, "shard-manager", "serve", f"listen.grpc={self.addresses[name]}", self.profile,
            f"store.url=etcd:{endpoints}", f"cluster.shard_count={self.shards}", "rebalance.settle=1s",
            "leadership.leader_lease_ttl=3s", "store.request_timeout=1s", "leadership.standby_grpc=redirect",
        )  # fmt: skip

    def leader(self):
        """The manager that leads, if one says so."""
        for name in filter(self.runs, MANAGERS):
            try:
                urllib.request.urlopen(f"http://{self.http[name]}/leaderz", timeout=2).close()
                return name
            except (urllib.error.HTTPError, OSError):
                continue
        return None

    def note_reaped(self):
        """How many executors have been reaped so far, asked before a manager is ended."""
        counts = (self.metric(name, "reaped_leases", "") for name in filter(self.runs, MANAGERS))
        return sum(sum(each.values()) for each in counts)


class HaDemo(Story):
    """Managers, etcd members and executors die in turn."""

    def start(self):
        say(f"starting three etcd members, three managers, five executors and two gateways in {self.cluster.folder}")
        for member in MEMBERS:
            self.cluster.etcd(member)
        for member in MEMBERS:
            wait_for(f"{member} to be healthy", lambda: self.cluster.etcd_is_healthy(member))
        for name in MANAGERS:
            self.cluster.manager(name)
        wait_for("a leader", self.cluster.leader)
        for name in EXECUTORS:
            self.cluster.executor(name)
        for name in ("gateway-1", "gateway-2"):
            self.cluster.gateway(name)

    def tell(self):
        self.during("quiet", lambda: time.sleep(3), 5, 0, None)
        self.during("kill -9 the leading manager", self.end_leader(signal.SIGKILL), 5, 0, SECOND)
        self.during("kill -9 its successor", self.end_leader(signal.SIGKILL), 5, 0, SECOND)
        self.during("SIGTERM the last manager, start all", self.restart_managers, 5, 0, SECOND)
        self.during("SIGTERM the leading manager", self.resign, 5, 0, SECOND)
        self.during("kill -9 etcd's leader, start it", self.kill_etcd_leader, 5, 0, SECOND)
        self.during("restart etcd's members in turn", self.roll_etcd, 5, 0, SECOND)
        shares = 2 * -(-self.cluster.shards // len(EXECUTORS))
        self.during("restart the executors in turn", self.roll_executors, 5, shares * len(EXECUTORS), GRACE + SECOND)
        if reaped := self.cluster.reaped + self.cluster.note_reaped():
            raise Failed(f"{reaped} executors were reaped, and none was away for a lease")

    def end_leader(self, number):
        def end():
            leader = wait_for("a leader", self.cluster.leader)
            self.cluster.reaped += self.cluster.note_reaped()
            self.cluster.signal(leader, number)
            if any(map(self.cluster.runs, MANAGERS)):
                wait_for("its successor", self.cluster.leader, pause=0.01)

        return end

    def restart_managers(self):
        self.end_leader(signal.SIGTERM)()
        for name in MANAGERS:
            self.cluster.manager(name)
        wait_for("a leader", self.cluster.leader)

    def resign(self):
        leader = wait_for("a leader", self.cluster.leader)
        self.cluster.reaped += self.cluster.note_reaped()
        if code := self.cluster.signal(leader, signal.SIGTERM):
            raise Failed(f"{leader} ended with {code} after SIGTERM")
        wait_for("its successor", self.cluster.leader, pause=0.01)
        self.cluster.manager(leader)

    def kill_etcd_leader(self):
        member = wait_for("etcd's leader", self.cluster.etcd_leader)
        self.cluster.signal(member, signal.SIGKILL)
        wait_for("etcd's next leader", self.cluster.etcd_leader, pause=0.01)
        self.cluster.etcd(member)
        wait_for(f"{member} to be healthy", lambda: self.cluster.etcd_is_healthy(member))

    def roll_etcd(self):
        for member in MEMBERS:
            self.cluster.signal(member, signal.SIGTERM)
            self.cluster.etcd(member)
            wait_for(f"{member} to be healthy", lambda: self.cluster.etcd_is_healthy(member))

    def roll_executors(self):
        for name in EXECUTORS:
            if code := self.cluster.signal(name, signal.SIGTERM):
                raise Failed(f"{name} ended with {code} after SIGTERM")
            self.cluster.executor(name)
            wait_for(f"{name} to have its share", lambda: self.cluster.settled(len(EXECUTORS)), PATIENCE, 0.2)


if __name__ == "__main__":
    sys.exit(main(HaDemo, HaCluster, __doc__))
