"""A stranger on the virtual store writes, repeats and takes away messages at any time, and has no secret."""

import random

from virtual.outside import VirtualStore

FORGES = ("append", "push", "squat", "give up", "beat", "ring", "relay")
TAKES = ("delete", "pop", "overwrite", "mix up")
_FORGED = (
    '{sender} {number} {{"type": "published", "seq": 1, "facts": {{}}}}',
    '{sender} {number} {{"type": "published", "seq": 1, "facts": {{}}, "problem": null}}\n{{}}',
    '{sender} {number} {{"type": "final", "exit_code": 0, "word": "ACCEPTED", "lines": ["ACCEPTED"]}}',
    '{sender} {number} {{"type": "stop_request", "reason": "SIGTERM", "is_loss": false}}',
    '{sender} {number} ["a lie", ""]',
    "null",
    "no more",
    "",
    "garbage",
)


class Stranger:
    """Does one thing at a time. It has read everything that was ever in the store."""

    def __init__(self, store: VirtualStore, world_size: int, seed: int) -> None:
        self.has_taken = False
        self._store = store
        self._world_size = world_size
        self._random = random.Random(seed)

    def strike(self, what: str) -> None:
        store, rank = self._store, self._random.randrange(self._world_size)
        match what:
            case "append":
                for key in self._keys("box/"):
                    store.values[key] += f"{self._text()}\n".encode() * self._random.choice([0, 1, 3]) + self._text().encode()
            case "push":
                store.queues[f"to/{rank}"].append(self._text().encode())
            case "squat":
                place = max((int(key[5:]) for key in self._keys("cast/")), default=0)
                for number in range(1, self._random.choice([1, 2, 9])):
                    store.values.setdefault(f"cast/{place + number}", self._text().encode())
            case "give up":
                store.values[f"given-up/{rank}"] = self._text().encode()
            case "beat":
                store.values[f"beat/{rank}"] = self._text().encode()
            case "ring":
                store.values["bell"] = self._text().encode()
            case "relay":
                store.values["relay/0"] = self._text().encode()
            case "delete":
                for key in self._random.sample(sorted(store.values), min(len(store.values), self._random.choice([1, 5, 99]))):
                    self.has_taken = True
                    del store.values[key]
            case "pop":
                for queue in [one for one in store.queues.values() if one]:
                    self.has_taken = True
                    queue.popleft()
            case "overwrite":
                for key in self._keys("box/", "cast/", "letter/"):
                    self.has_taken = True
                    store.values[key] = self._text().encode()
            case "mix up":
                texts = [text for key in self._keys("box/") for text in store.values[key].split(b"\n") if text]
                texts += [store.values[key] for key in self._keys("letter/", "cast/")]
                for key in self._keys("letter/", "cast/"):
                    self.has_taken = True
                    store.values[key] = self._random.choice(texts)

    def _keys(self, *prefixes: str) -> list[str]:
        return sorted(key for key in self._store.values if key.startswith(prefixes))

    def _text(self) -> str:
        """Return a made-up text, or one that was in the store, with the code that it had there."""
        seen = [text for _, _, text in self._store.traffic[-200:]]
        values = [value.decode("utf-8", "replace") for value in self._store.values.values()]
        seen += [*values, *(line for value in values for line in value.split("\n"))]
        if seen and self._random.random() < 0.5:
            return self._random.choice(seen)
        body = self._random.choice(_FORGED)
        filled = body.format(sender=self._random.randrange(self._world_size), number=self._random.randrange(9)) if "{" in body else body
        return "0" * 32 + filled if self._random.random() < 0.7 else filled
