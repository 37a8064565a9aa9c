#!/usr/bin/env python3
"""Kill, freeze and restart a real cluster while it counts every word of a text; every count must come out exact.

One manager (SQLite), four executors that share one directory of oplogs, and one gateway run as processes on loopback.
`docs/demo.md` says what each fault is, how each bound follows from the protocol, and how "not served" is measured. Exit
code 0: all counts were exact, no caller saw an error, and no shard was without service for longer, or moved more often,
than the protocol allows. Every process is ended; the folder is removed, or kept with its logs when something failed.
"""

import signal
import sys
import time

from demo_cluster import GRACE, Cluster, Failed, say, wait_for
from demo_story import SECOND, Story, main

# The lease profile `fast`, as `shard-executor config show --set lease.profile=fast` tells it, in seconds.
LEASE = 3.0
HOLDER_LEASE = LEASE * (1 - 0.001)
RENEW_AFTER = HOLDER_LEASE / 3
ATTEMPT = 0.5


class Demo(Story):
    """One manager: its executors crash, freeze and restart, and then it is killed itself."""

    def start(self):
        say(f"starting one manager, four executors and a gateway in {self.cluster.folder}")
        self.cluster.manager()
        for number in range(1, 5):
            self.cluster.executor(f"executor-{number}")
        self.cluster.gateway("gateway-1")

    def tell(self):
        shards, third = self.cluster.shards, -(-self.cluster.shards // 3)
        self.during("quiet", lambda: time.sleep(3), 4, 0, None)
        self.during("kill -9 an executor", self.crash, 3, shards // 4, LEASE + SECOND)
        self.during("freeze one for 9 s, wake it", self.freeze, 3, 2 * third, LEASE + SECOND)
        self.during("SIGTERM one, start it", self.restart, 3, 2 * third, GRACE + SECOND)
        self.during("kill -9 the manager, 6 s", self.without_manager, 3, 0, None)

    def crash(self):
        self.cluster.signal("executor-1", signal.SIGKILL)

    def freeze(self):
        """Where it hurts most: in the middle of a transaction on the store that all share, if 500 tries hit one."""
        for _ in range(500):
            self.cluster.signal("executor-2", signal.SIGSTOP)
            wait_for("executor-2 to freeze", lambda: self.cluster.frozen("executor-2"), pause=0.001)
            if self.cluster.writes("executor-2"):
                say("frozen with the oplogs' write lock in its hands")
                break
            self.cluster.signal("executor-2", signal.SIGCONT)
            time.sleep(0.003)
        else:
            self.cluster.signal("executor-2", signal.SIGSTOP)
        time.sleep(3 * LEASE)
        self.cluster.signal("executor-2", signal.SIGCONT)

    def restart(self):
        if code := self.cluster.signal("executor-3", signal.SIGTERM):
            raise Failed(f"executor-3 ended with {code} after SIGTERM")
        wait_for("its shards to be elsewhere", lambda: self.cluster.settled(2), pause=0.2)
        self.cluster.executor("executor-3")

    def without_manager(self):
        """Returns the bound: from the end of the leases, renewed up to a third before, to the next answered renewal."""
        self.cluster.signal("manager", signal.SIGKILL)
        killed = time.monotonic()
        time.sleep(2 * LEASE)
        self.cluster.manager()
        outage = time.monotonic() - killed
        return outage - (HOLDER_LEASE - RENEW_AFTER) + ATTEMPT + SECOND


if __name__ == "__main__":
    sys.exit(main(Demo, Cluster, __doc__))
