"""Who watches the cluster of the fault matrix: callers, the executors' own word beside each other, etcd's history."""

import base64
import collections
import http.client
import json
import threading
import time
import urllib.request
import uuid

from demo_cluster import PROBE_PAUSE, Failed, Probes
from faults_wire import Connection, fields, numbers
from faults_world import EXECUTORS, GATEWAYS, PORTS, enter

LOOK_PAUSE = 0.04  # between two questions to one executor
LOOK_PATIENCE = 1.0
INSPECT = "/leasehold.v1.ExecutorService/Inspect"
HEAD = b"/leasehold/leasehold/head"

Seen = collections.namedtuple("Seen", "at shard what")
# That an executor's life admits a shard at an epoch, for certain from `begun` to `ended`.
Span = collections.namedtuple("Span", "life epoch begun ended")


class Callers(Probes):
    """Probes that do as callers are told to: what got no answer is repeated under its key, at the other gateway."""

    def __init__(self, cluster):
        super().__init__(cluster)
        self.patience, self.home = 30.0, 0
        self.met, self.broken = [], []
        self.counted = collections.Counter()

    def connect(self, shard):
        name = GATEWAYS[shard % len(GATEWAYS)]
        host, port = self.cluster.http[name].split(":")
        return http.client.HTTPConnection(host, int(port), timeout=self.patience)

    def probe(self, shard, agent):
        """Each answered call must have counted once, whichever of its attempts it was."""
        at, home, connection = shard, self.home, None
        while not self.stopped.wait(PROBE_PAUSE):
            key = uuid.uuid4().hex
            while not self.stopped.is_set():
                if home != self.home:
                    at, home, connection = shard, self.home, None
                try:
                    connection = connection or self.connect(at)
                    answer = self.ask(connection, agent, "increment", Idempotency_Key=key)
                    break
                except (Failed, OSError, http.client.HTTPException) as error:
                    self.met.append(Seen(time.monotonic(), shard, f"{error!r}"))
                    at, connection = at + 1, None
                    self.stopped.wait(0.02)
            else:
                return
            self.counted[shard] += 1
            if answer.value != self.counted[shard]:
                told = f"{agent}: {answer.value} counted after {self.counted[shard]} calls"
                self.broken.append(Seen(answer.at, shard, told))
                self.counted[shard] = answer.value
            self.answers[shard].append(answer)

    def go_home(self, patience):
        """From the next call on each caller asks its own gateway again, and gives up an attempt after so long."""
        self.patience, self.home = patience, self.home + 1

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join(40)


class Watch:
    """Asks every executor, on its own host, what it admits, again and again, and compares the answers."""

    def __init__(self, world):
        self.world, self.stopped, self.lock = world, threading.Event(), threading.Lock()
        self.broken, self.asked = [], 0
        self.renew(strict=True)
        self.threads = [threading.Thread(target=self.look, args=[name], daemon=True) for name in EXECUTORS]

    def renew(self, strict):
        """Forgets everything. In a new world epochs begin anew, and an old lease may still be out (`strict` False)."""
        with self.lock:
            self.strict, self.last, self.spans = strict, {}, collections.defaultdict(dict)
            self.newest, self.holders, self.overlaps = {}, {}, 0.0

    def start(self):
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.stopped.set()
        for thread in self.threads:
            thread.join(5)

    def look(self, name):
        enter(self.world.network.namespace(name))
        connection = None
        while not self.stopped.wait(LOOK_PAUSE):
            try:
                begun = time.monotonic()
                address = self.world.network.address(name)
                connection = connection or Connection(address, PORTS["executor"], LOOK_PATIENCE)
                answer = fields(connection.call(INSPECT))
            except OSError:
                connection = connection and connection.close()
                continue
            held = zip(numbers(answer.get(6, b"")), numbers(answer.get(7, b"")))
            admits = dict(held) if answer.get(5) else {}
            with self.lock:
                self.asked += 1
                self.compare(name, answer[1].hex(), admits, begun, time.monotonic())

    def compare(self, name, life, admits, begun, ended):
        """`admits` held at some instant between `begun` and `ended`."""
        before_life, before, before_ended = self.last.get(name, (None, {}, 0.0))
        self.last[name] = (life, admits, ended)
        for shard, epoch in admits.items():
            holder = self.holders.setdefault((shard, epoch), life)
            if holder != life:
                self.breaks(shard, f"epoch {epoch} was told to two executors, {holder} and {life} (S2)")
            newest, since = self.newest.get(shard, (0, 0.0))
            if epoch < newest and begun > since:
                self.breaks(shard, f"{name} admits at epoch {epoch}, {begun - since:.3f} s after another did at {newest} (S1)")
            if epoch > newest:
                self.newest[shard] = (epoch, ended)
            if before_life == life and before.get(shard) == epoch:
                known = self.spans[shard].get((life, epoch))
                span = Span(life, epoch, known.begun if known else before_ended, begun)
                self.spans[shard][life, epoch] = span
                self.overlapping(shard, span)

    def overlapping(self, shard, span):
        for other in self.spans[shard].values():
            both = min(span.ended, other.ended) - max(span.begun, other.begun)
            if other.life != span.life and both > 0:
                self.overlaps = max(self.overlaps, both)
                self.breaks(shard, f"two executors admit it for {both:.3f} s, at {other.epoch} and {span.epoch} (S1)")

    def breaks(self, shard, what):
        if self.strict:
            self.broken.append(Seen(time.monotonic(), shard, f"shard {shard}: {what}"))


class History:
    """Every write of the cluster's state, from etcd itself."""

    def __init__(self, world):
        self.world = world
        self.renew()

    def renew(self):
        self.next, self.before, self.leaderships = 1, (0, 0), set()

    def post(self, path, body, member):
        data = json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(self.world.client(member) + path, data), timeout=10)

    def check(self):
        """Reads on, and says what is wrong: each write must come from the leader of its time, and leaderships never go back."""
        member = self.world.etcd_leader()
        key = base64.b64encode(HEAD).decode()
        with self.post("/v3/kv/range", {"key": key}, member) as answer:
            until = int(json.load(answer)["kvs"][0]["mod_revision"])
        broken = []
        if until < self.next:
            return broken
        request = {"create_request": {"key": key, "start_revision": str(self.next)}}
        with self.post("/v3/watch", request, member) as events:
            while self.next <= until:
                for event in json.loads(events.readline())["result"].get("events", ()):
                    value = json.loads(base64.b64decode(event["kv"]["value"]))
                    now = (value["leadership"], value["revision"])
                    self.leaderships.add(now[0])
                    if now[0] < self.before[0] or now[1] < self.before[1]:
                        broken.append(f"etcd: a write of (leadership, revision) {now} after {self.before}")
                    self.before, self.next = now, int(event["kv"]["mod_revision"]) + 1
        return broken
