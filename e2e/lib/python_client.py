"""A session of pycouchdb's, as a user would write it: exits with 0 if everything was as expected."""

import sys

import pycouchdb

server = pycouchdb.Server(sys.argv[1])
assert server.info()["couchdb"] == "Welcome", server.info()

database = server.create("python")
assert "python" in server

saved = database.save({"_id": "one", "name": "Fünf", "list": [1, 2.5, None, {"x": True}]})
assert saved["_rev"].startswith("1-"), saved
loaded = database.get("one")
assert loaded["name"] == "Fünf" and loaded["list"] == [1, 2.5, None, {"x": True}], loaded

loaded["name"] = "Sechs"
updated = database.save(loaded)
assert updated["_rev"].startswith("2-"), updated
try:
    database.save({"_id": "one", "_rev": saved["_rev"], "name": "late"})
except pycouchdb.exceptions.Conflict:
    pass
else:
    raise AssertionError("an old revision was taken")

bulk = database.save_bulk([{"_id": f"bulk-{n}", "n": n} for n in range(10)])
assert len(list(bulk)) == 10
assert len(database) == 11, len(database)
assert sorted(row["id"] for row in database.all()) == sorted(["one"] + [f"bulk-{n}" for n in range(10)])

last_seq, changes = database.changes_list()
assert len(changes) == 11, changes

database.delete("one")
try:
    database.get("one")
except pycouchdb.exceptions.NotFound:
    pass
else:
    raise AssertionError("a deleted document was found")
assert database.delete_bulk([database.get(f"bulk-{n}") for n in range(10)])
assert len(database) == 0

server.delete("python")
assert "python" not in server
print("pycouchdb", "ok")
