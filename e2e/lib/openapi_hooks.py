"""How schemathesis asks a server of this project: with names that exist, and without waiting for feeds.

When it ends, it writes which statuses each operation answered to the file in OPENAPI_STATUSES.
"""

import atexit
import collections
import json
import os

import requests
import schemathesis

URL = os.environ["OPENAPI_URL"]
MAP = {"map": "function (doc) { emit(doc.n, 1); }"}

# What requests meet. It is stored again and again, since they also delete it.
STORED = [
    ("PUT", "db", None),
    ("PUT", "parts?partitioned=true", None),
    ("PUT", "db/doc", {"n": 1, "_attachments": {"a.txt": {"content_type": "text/plain", "data": "YQ=="}}}),
    ("PUT", "db/_design/d", {
        "views": {"v": MAP | {"reduce": "_count"}},
        "filters": {"f": "function () { return true; }"},
        "updates": {"u": "function () { return [null, 'done']; }"},
    }),
    ("PUT", "parts/p:doc", {"n": 1}),
    ("PUT", "parts/_design/d", {"views": {"v": MAP}}),
    ("POST", "db/_index", {"index": {"fields": ["n"]}, "ddoc": "index", "name": "by-n"}),
]
CALLS_BETWEEN = 50

# Most requests get the names of these, since others are answered with 404.
KNOWN = {
    "docid": ["doc", "new", "_design/d"],
    "ddoc": ["d"],
    "view": ["v", "d"],
    "attname": ["a.txt"],
    "id": ["index"],
    "key": ["by-n"],
}

server = requests.Session()
server.auth = tuple(os.environ["OPENAPI_USER"].split(":"))
server.trust_env = False
calls = 0
statuses = collections.defaultdict(set)


def pick(known, value):
    """One of the names, or the random value, which also decides, so that a seed repeats it."""
    return (known + [value])[sum(str(value).encode()) % (len(known) + 1)]


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if not path_parameters or not context.operation:
        return path_parameters
    found, path = dict(path_parameters), context.operation.path
    for name, known in KNOWN.items():
        if name in found and "/_config" not in path:
            found[name] = pick(known, found[name])
    if "db" in found:
        found["db"] = pick(["parts"] if "partition" in found else ["db", "db"], found["db"])
    if "partition" in found:
        found["partition"] = pick(["p", "p"], found["partition"])
    return found


@schemathesis.hook
def before_call(context, case, kwargs):
    global calls
    if calls % CALLS_BETWEEN == 0:
        for method, path, body in STORED:
            server.request(method, f"{URL}/{path}", json=body, timeout=20)
    calls += 1
    if case.operation.path.endswith(("_changes", "_db_updates")) and isinstance(case.query, dict):
        # A feed that waits would wait for its whole timeout.
        case.query.pop("heartbeat", None)
        case.query["timeout"] = 20
        # Lines of JSON are of the type `application/json`, as in CouchDB, and are not JSON as a whole.
        if case.query.get("feed") in ("continuous", "live"):
            case.query["feed"] = "eventsource"


@schemathesis.hook
def after_call(context, case, response):
    statuses[f"{case.operation.method.upper()} {case.operation.path}"].add(response.status_code)


@schemathesis.check
def no_fault(context, response, case):
    """No 5xx. Endpoints that refuse all requests, and are described so, may say 501 or 503."""
    answers = case.operation.definition.raw["responses"]
    only_refuses = not any(status.startswith("2") for status in answers)
    assert response.status_code < 500 or (only_refuses and response.status_code in (501, 503))


@atexit.register
def write():
    if name := os.environ.get("OPENAPI_STATUSES"):
        with open(name, "w") as file:
            json.dump({operation: sorted(seen) for operation, seen in statuses.items()}, file)
