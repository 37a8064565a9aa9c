#!/usr/bin/env python3
"""Shopping carts: a bridged agent type of Leasehold, with the standard library alone.

    python3 cart.py [PORT]            # 127.0.0.1:9000 by default; port 0 takes a free one, and prints it

    shard-executor serve --set bridge.apps=cart=http://127.0.0.1:9000
    shard-executor invoke cart/alice add '{"item": "tea", "count": 2}'
    shard-executor invoke cart/alice show

The executor keeps each cart; this program keeps nothing. It is given a state and says what becomes of it, so it may be
stopped, started again, or run several times behind a balancer. It may be asked twice about one invocation (the executor
died before it had stored the answer), and what it answers is stored once. Whatever it does to the outside world it should
therefore do under the idempotency key, which is the same both times.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

BODY_MOST = 4 * 1024 * 1024


class Rejected(Exception):
    """The agent says no, in these words; nothing changes."""


def add(state, payload):
    item, count = payload.get("item"), payload.get("count", 1)
    if not isinstance(item, str) or not 1 <= len(item) <= 100:
        raise Rejected("item: expected a text of 1 to 100 characters")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 1000:
        raise Rejected("count: expected a whole number, 1 to 1000")
    total = state.get("items", {}).get(item, 0) + count
    # One entry: a JSON merge patch of the state. It is what the oplog keeps, so that replaying needs nobody.
    return {"answer": {"item": item, "count": total}, "entries": [{"items": {item: total}}]}


def remove(state, payload):
    item = payload.get("item")
    if item not in state.get("items", {}):
        raise Rejected(f"there is no {item} in the cart")
    return {"answer": {"item": item, "count": 0}, "entries": [{"items": {item: None}}]}


def clear(state, payload):
    # The whole new state instead of entries.
    return {"answer": {"removed": len(state.get("items", {}))}, "state": {"items": {}}}


def show(state, payload):
    # Neither entries nor state: a read, nothing is stored.
    return {"answer": {"items": state.get("items", {})}}


METHODS = {"add": add, "remove": remove, "clear": clear, "show": show}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > BODY_MOST:
            return self.answer(413, "the question is too long")
        question = json.loads(self.rfile.read(length))
        # /agents/{type}/{id}/{method}, each percent-encoded
        parts = [unquote(part) for part in self.path.split("/")[1:]]
        if len(parts) != 4 or parts[:2] != ["agents", "cart"] or parts[3] not in METHODS:
            return self.answer(404, f"there is no method {parts[-1]}")
        payload = question["payload"] or {}
        if not isinstance(payload, dict):
            return self.answer(422, "payload: expected an object")
        try:
            decided = METHODS[parts[3]](question["state"] or {}, payload)
        except Rejected as why:
            return self.answer(422, str(why))
        self.answer(200, json.dumps(decided))

    def answer(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status == 200 else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        print(self.address_string(), format % args, file=sys.stderr, flush=True)


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 9000
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
