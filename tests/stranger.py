"""A stranger on the control store: another user of the machine, who can connect to it, and knows how the protocol works but no secret."""

import subprocess
import sys

from needs import is_root

NOBODY = 65534
# Until it is killed. PLAN names what it does, over and over, as fast as the store takes it.
_STRANGER = """
import json, os, sys, time
if int(sys.argv[3]):
    os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[3]))
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", int(sys.argv[1]), None, is_master=False)
plan, captured, begun = sys.argv[2], {}, set()
record = {"kind": "rank", "nodeid": "?", "attempt": 1, "generation": 1, "rank": 1, "outcome": "passed"}
forged = json.dumps([1, 99, {"type": "published", "seq": 1, "record": json.dumps(record), "facts": {}, "problem": None}])
print("up", flush=True)


def read(key):
    return store.compare_set(key, "?", "?").decode("utf-8", "replace")


def forge(key, folder, kind):
    if kind == "box":
        for line in read(key).split("\\n"):
            captured.setdefault(line, key)
        others = [line for line, box in captured.items() if line and box != key][-20:]
        store.append(key, "\\n".join(["garbage", "0" * 32 + forged, forged, *others]) + "\\n")
        store.set(f"{folder}bell", "")
    elif kind == "cast":
        place = int(key.rpartition("/")[2])
        for text in (read(key), "0" * 32 + '[0, 99, {"type": "final", "exit_code": 0, "word": "ACCEPTED", "lines": ["ACCEPTED"]}]'):
            store.compare_set(f"{folder}cast/{place + 1}", "", text)
    elif kind in {"beat", "to"}:
        for rank in (0, 1):
            store.queue_push(f"{folder}to/{rank}", "0" * 32 + f'[{1 - rank}, 99, {{"type": "stop_request", "reason": "SIGTERM"}}]')
            store.queue_push(f"{folder}to/{rank}", "no more")
            store.queue_push(f"{folder}to/{rank}", "x" * 100_000)
        store.set(f"{folder}given-up/0", '["rank 0 lost: a lie", ""]')


def take_away(key, folder, kind):
    if plan in {kind, "everything"} and kind != "beat":
        store.delete_key(key)
    if plan == "everything":
        store.delete_key(f"{folder}bell")
        for rank in (0, 1):
            if store.queue_len(f"{folder}to/{rank}"):
                store.queue_pop(f"{folder}to/{rank}", False)


while True:
    for key in store.list_keys():
        for kind in ("box", "cast", "beat", "letter"):
            folder, found, _ = key.partition(f"/{kind}/")
            if found:
                (forge if plan == "forge" else take_away)(key, f"{folder}/", kind)
    time.sleep(0.005 if plan == "forge" else 0)
"""


class Stranger:
    """A context manager. `plan`: `forge`, or the kind of key that it deletes (`box`, `cast`), or `everything`."""

    def __init__(self, port: int, plan: str) -> None:
        user = NOBODY if is_root() else 0
        command = [sys.executable, "-c", _STRANGER, str(port), plan, str(user)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Stranger":
        assert self._process.stdout
        assert self._process.stdout.readline() == "up\n", self._process.communicate()
        return self

    def __exit__(self, *_: object) -> None:
        was_there = self._process.poll() is None
        self._process.kill()
        _, said = self._process.communicate()
        assert was_there or "Connection" in said or "recv" in said, said  # the store may end before it
