"""A run fit to give away: its names replaced by stand-ins, everywhere alike, in all files of its folder.

JSON is taken apart and its texts are replaced, so that no escape hides a name. `tensorboard/` is left out: it can be made of the results.
The page and the files for other tools are built anew, links to outside are taken out, and a manifest over what is given away is written.
"""

import html
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

from gpu_acceptance.base.model import Model, encode
from gpu_acceptance.base.strict_json import StrictJsonError, parse
from gpu_acceptance.base.text import visible
from gpu_acceptance.folder.files import RESULTS, RecordError, read_regular, read_results, sha256_of, write_atomically
from gpu_acceptance.folder.manifest import MANIFEST, SIGNATURE, Manifest, find_manifest, write_manifest
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report import event_files
from gpu_acceptance.report.build import REPORT, write_page
from gpu_acceptance.report.exports import EXPORTS, write_exports
from gpu_acceptance.report.naming import STEERS, StandIns, closed_values, learn_record, learn_texts, read_stand_ins, write_stand_ins

REDACTION = "redaction.json"
_OF_EARLIER_VERSIONS = "pytest.html"  # which counted passes, and held names in a form of its own
_LEFT_OUT = {MANIFEST, SIGNATURE, REPORT, REDACTION, _OF_EARLIER_VERSIONS, *EXPORTS}
_WORD = re.compile(r"[^\W_]+")
_LINK = re.compile(r'<a href="https?:[^"]*">(.*?)</a>')


class Replaced(Model):
    stand_in: str
    sha256: str  # of salt and name


class Redaction(Model):
    """`redaction.json` of a redacted run: which run it was, and the digest of what each stand-in stands for."""

    schema_version: int = 1
    run_id: str
    manifest_sha256: str  # of the run's own; empty where it had none
    results_sha256: str
    replaced: tuple[Replaced, ...]


class Redactor:
    """Replaces the names that it was given, the longest first, in one pass: a stand-in may be another machine's name."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._names: dict[str, str] = {}  # with its stand-in
        shapes: dict[str, set[tuple[int, int]]] = {}  # first word of names -> how long they are, and where it stands in them
        self._steering: list[tuple[str, str]] = []  # names that would be taken apart
        self._closed = closed_values()
        self._replaced: dict[str, str] = {}  # values: every rank has most of them again
        for name, one in stand_ins.names.items():
            for form in _forms(name):
                if STEERS.search(form):
                    self._steering.append((form, one.stand_in))
                elif word := _WORD.search(form):
                    self._names.setdefault(form, one.stand_in)
                    shapes.setdefault(word[0], set()).add((len(form), word.start()))
        self._longest_first = {word: sorted(lengths, reverse=True) for word, lengths in shapes.items()}

    def text(self, text: str) -> str:
        """A name counts where no letter or digit touches it: a host `vm` is no part of `nvml`."""
        for name, stand_in in self._steering:
            text = text.replace(name, stand_in)
        return "".join(part if number % 2 else self._part(part) for number, part in enumerate(STEERS.split(text)))

    def value(self, value: Any) -> Any:
        """The same in all texts of what JSON holds; a key that could be one of ours is none of a machine's.

        Nor is a value that its field may only have: where a host is named `rank`, the scope of a limit is that word still.
        """
        if isinstance(value, str):
            if value not in self._replaced:
                self._replaced[value] = self.text(value)
            return self._replaced[value]
        if isinstance(value, dict):
            return {key if key.isidentifier() else self.text(key): self._of_field(key, one) for key, one in value.items()}
        return [self.value(one) for one in value] if isinstance(value, list) else value

    def _of_field(self, key: str, value: Any) -> Any:
        return value if isinstance(value, str) and value in self._closed.get(key, ()) else self.value(value)

    def file(self, name: str, text: str) -> str:
        if name.endswith((".json", ".jsonl")):
            return "\n".join(map(self._line, text.split("\n")))
        if name.endswith(".html"):
            text = _LINK.sub(r"\1", text)
        return self.text(text)

    def _line(self, line: str) -> str:
        """One value of JSON; what is none, such as a line that was cut off, is a text."""
        try:
            return json.dumps(self.value(parse(line)), ensure_ascii=False, separators=(",", ":")) if line else ""
        except StrictJsonError:
            return self.text(line)

    def _part(self, text: str) -> str:
        pieces, done = list[str](), 0
        for word in _WORD.finditer(text):
            for length, before in self._longest_first.get(word[0], ()):
                start, end = word.start() - before, word.start() - before + length
                if start >= done and (stand_in := self._names.get(text[start:end])) and not _touches(text, start, end):
                    pieces += [text[done:start], stand_in]
                    done = min(end, len(text))
                    break
        return "".join([*pieces, text[done:]])


def _forms(name: str) -> set[str]:
    """As files write it: as it is, made visible, in HTML, and in a line of JSON that was cut off."""
    seen = {name, visible(name)}
    return {*seen, *map(html.escape, seen), json.dumps(name)[1:-1], json.dumps(name, ensure_ascii=False)[1:-1]}


def _touches(text: str, start: int, end: int) -> bool:
    before, after = start > 0 and text[start - 1].isalnum(), end < len(text) and text[end].isalnum()
    return (before and text[start].isalnum()) or (after and text[end - 1].isalnum())


def redact_run(run_dir: Path, out: Path, names: Path) -> Manifest:
    """Makes the folder `out`, whole or not at all, and before it the owner's file of names, or adds to it. Raises RecordError, OSError."""
    record, stand_ins = read_results(run_dir), read_stand_ins(names)
    texts = {name: read_regular(run_dir / name).decode("utf-8", "replace") for name in _names_of_texts(run_dir)}
    learn_record(record, stand_ins)
    learn_texts((html.unescape(text) if name.suffix == ".html" else text for name, text in texts.items()), stand_ins)
    write_stand_ins(names, stand_ins)
    redactor, making = Redactor(stand_ins), out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        for name, text in texts.items():
            (making / name).parent.mkdir(parents=True, exist_ok=True)
            (making / name).write_text(redactor.file(name.name, text), encoding="utf-8")
        write_page(making)
        if problems := write_exports(making, read_results(making)):
            raise RecordError(problems[0])
        write_atomically(making / REDACTION, encode(_redaction(run_dir, record, stand_ins)) + "\n")
        manifest = write_manifest(making)
        making.rename(out)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return manifest


def _names_of_texts(run_dir: Path) -> list[Path]:
    """Of the files that are given away, relative to the folder of the run; what is a link in it is none."""
    there = [Path(folder, name) for folder, _, names in os.walk(run_dir) for name in names]
    files = sorted(path.relative_to(run_dir) for path in there if path.is_file() and not path.is_symlink())
    return [name for name in files if name.parts[0] != event_files.FOLDER and name.as_posix() not in _LEFT_OUT]


def _redaction(run_dir: Path, record: RunRecord, stand_ins: StandIns) -> Redaction:
    manifest = find_manifest(run_dir)
    replaced = sorted({(one.stand_in, one.sha256) for one in map(stand_ins.names.__getitem__, stand_ins.used)})
    return Redaction(
        run_id=record.plan.run_id,
        manifest_sha256=manifest.sha256 if manifest else "",
        results_sha256=sha256_of(read_regular(run_dir / RESULTS)),
        replaced=tuple(Replaced(stand_in=stand_in, sha256=sha256) for stand_in, sha256 in replaced),
    )
