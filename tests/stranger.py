"""A stranger on the control store: another user of the machine, who can connect to it, and knows how the protocol works but no secret."""

import subprocess
import sys
from pathlib import Path

from needs import is_root

NOBODY = 65534
# Until it is killed. PLAN names what it does, over and over, as fast as the store takes it. What it heard goes to HEARD, if there is one.
_STRANGER = """
import contextlib, json, os, sys, time
heard = open(sys.argv[4], "a+") if len(sys.argv) > 4 else None
if int(sys.argv[3]):
    os.setgid(int(sys.argv[3])), os.setuid(int(sys.argv[3]))
from torch.distributed import QueueEmptyError, TCPStore

store = TCPStore("127.0.0.1", int(sys.argv[1]), None, is_master=False)
(plan, _, aim), captured, repeated = sys.argv[2].partition(" "), {}, set()
if heard:
    heard.seek(0)
    captured = {json.loads(line): "of an earlier run" for line in heard}
forged = "1 99 " + json.dumps({"type": "published", "seq": 1, "facts": {}, "problem": None})
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
        for text in (read(key), "0" * 32 + '0 99 {"type": "final", "exit_code": 0, "word": "ACCEPTED", "lines": ["ACCEPTED"]}'):
            store.compare_set(f"{folder}cast/{place + 1}", "", text)
    elif kind in {"beat", "to"}:
        for rank in (0, 1):
            store.queue_push(f"{folder}to/{rank}", "0" * 32 + f'{1 - rank} 99 {{"type": "stop_request", "reason": "SIGTERM"}}')
            store.queue_push(f"{folder}to/{rank}", "no more")
            store.queue_push(f"{folder}to/{rank}", "x" * 100_000)
        store.set(f"{folder}given-up/0", '{"reason": "rank 0 lost: a lie"}')


def listen(key, folder, kind):
    for text in read(key).split("\\n") if kind == "box" else [read(key)] * (kind != "beat"):
        if text not in captured:
            captured[text] = key
            print(json.dumps(text), file=heard, flush=True)


def replay(key, folder, kind):
    if key in repeated:
        return
    repeated.add(key)
    if kind == "box":
        store.append(key, "\\n".join(captured) + "\\n")
        store.set(f"{folder}bell", "")
    elif kind == "cast":
        for line in captured:
            store.compare_set(f"{folder}cast/{int(key.rpartition('/')[2]) + 1}", "", line)
    elif kind == "beat":
        for line in captured:
            for rank in (0, 1):
                store.queue_push(f"{folder}to/{rank}", line)


def flood(key, folder, kind):
    if kind == "box" and key not in captured:
        captured[key] = "flooded"
        for line in ("x\\n", "x\\n", "0" * 32 + "0 1 []\\n"):
            store.append(key, line * (7_800_000 // len(line)))
        store.set(f"{folder}bell", "")
        print("flooded", flush=True)


def overwrite(key, folder, kind):
    if f"{kind}/" in aim and key.endswith(aim):
        store.set(key, "x")


def hold(key, folder, kind):
    if f"{kind}/" in aim and key.endswith(aim):
        store.set(key, captured.setdefault(key, read(key)))


def take_away(key, folder, kind):
    if plan in {kind, "everything"}:
        store.delete_key(key)
    if plan == "everything":
        store.delete_key(f"{folder}bell")
        for rank in (0, 1):
            with contextlib.suppress(QueueEmptyError):  # its owner may be faster
                store.queue_pop(f"{folder}to/{rank}", False)


plans = {"forge": forge, "listen": listen, "replay": replay, "overwrite": overwrite, "hold": hold, "flood": flood}
while True:
    for key in store.list_keys():
        for kind in ("box", "cast", "beat", "letter"):
            folder, found, _ = key.partition(f"/{kind}/")
            if found:
                plans.get(plan, take_away)(key, f"{folder}/", kind)
    time.sleep(0.005 if plan in {"forge", "replay"} or "beat" in sys.argv[2] else 0)  # heartbeats are a second apart
"""


class Stranger:
    """A context manager. `plan`: `forge`, or the kind of key that it deletes (`box`, `cast`, `beat`), or `everything`.

    `overwrite beat/1` writes garbage there, `hold beat/1` what was there first. `flood` fills each box.
    `listen` writes what is said to the file `heard`, and `replay` says all of it in another run.
    """

    def __init__(self, port: int, plan: str, heard: Path | None = None) -> None:
        user = NOBODY if is_root() else 0
        command = [sys.executable, "-c", _STRANGER, str(port), plan, str(user), *([str(heard)] if heard else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Stranger":
        self.await_line("up")
        return self

    def await_line(self, line: str) -> None:
        """Until it says so: `up`, or `flooded` after a box."""
        assert self._process.stdout
        assert self._process.stdout.readline() == f"{line}\n", self._process.communicate()

    def __exit__(self, *_: object) -> None:
        was_there = self._process.poll() is None
        self._process.kill()
        _, said = self._process.communicate()
        assert was_there or "Connection" in said or "recv" in said, said  # the store may end before it
