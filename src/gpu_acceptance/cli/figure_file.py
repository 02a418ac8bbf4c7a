"""A file of figures that somebody else measured: a CSV table, or what nccl-tests prints.

Each mistake is one ValueError that names the file, the line, what was seen and what is allowed.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.base.strict_yaml import shown
from gpu_acceptance.base.text import did_you_mean, plural
from gpu_acceptance.thresholds.known_metrics import KnownMetrics
from gpu_acceptance.thresholds.limit import Profile, Value, is_finite
from gpu_acceptance.verdict.replay import COLLECTIVES, UNMEASURED, Given, Shape, sizes_of

UNKNOWN = "unknown"
SIZE_ALLOWED = f"bytes, or a number with KiB, MiB, GiB, kB, MB or GB, as in 4GiB; {UNKNOWN} where nobody said it"
_MOST_BYTES, _MOST_FIGURES, _MOST_TEXT = 4 << 20, 10_000, 200
_REQUIRED, _OPTIONAL = ("metric", "value", "unit"), ("size", "node", "gpu")
_RATE = "GB/s"
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
_WHOLE = re.compile(r"[0-9]{1,6}")
_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(\.[0-9]{1,6})?) ?(?P<unit>B|KiB|MiB|GiB|kB|KB|MB|GB)?")
SIZES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_PROGRAM = {"alltoall": "all_to_all", "sendrecv": "send_recv"} | {name: name for name in COLLECTIVES}  # of nccl-tests, without `_perf`
# nccl-tests behind mpirun --tag-output, srun --label, or MPICH, which tags each write of a row: `-1[0]  1626.5`
_TAG = re.compile(r"\s*(\[\d+,\d+\]<std(out|err)>:|\d{1,6}:(?=\s)|(?P<mpich>\[\d{1,6}\])(?=\s))")
_STARTS = re.compile(r"#\s*Collective test starting:\s*(?P<name>\w+)_perf\s*")
_RANK = re.compile(r"#\s*Rank\s+(?P<rank>\d+)\s+(Group\s+(?P<group>\d+)\s)?.*?\bon\s+(?P<host>\S+)\s+device\s.*")
_HEAD = re.compile(r"#\s+size\s+count\s+type\b.*\bbusbw\b.*")
_SUMMARY = re.compile(r"#?\s*Out of bounds values\s*:\s*(?P<wrong>\d{1,18})\s.*")  # older versions count wrong elements here alone
_ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w+\s.*")


@dataclass(frozen=True)
class Context:
    """The limits and the job that a file of figures is for: they decide which names, units and places it may use."""

    known: KnownMetrics
    profile: Profile
    shape: Shape


def read_figures(path: Path, context: Context, collective: str | None) -> tuple[list[Given], bool]:
    """Return the figures of a file, at least one, and whether nccl-tests printed them. `collective`: of an output that does not name it."""
    try:
        lines = _read(path).splitlines()
        is_printed = any(_HEAD.fullmatch(_untagged(line)) for line in lines)
        if collective and not is_printed:
            raise ValueError(f"no output of nccl-tests, as --collective={collective} wants; the column metric names a collective")
        figures = list(_printed(lines, context.shape, collective) if is_printed else _tabled(lines, context))
        _check_each_once(figures)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return figures, is_printed


def _read(path: Path) -> str:
    if not path.is_file():  # a pipe would wait for ever
        raise ValueError("is not a regular file")
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"longer than {_MOST_BYTES} bytes; a file of figures has some lines for each collective")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None


def _check_each_once(figures: Sequence[Given]) -> None:
    if not 1 <= len(figures) <= _MOST_FIGURES:
        raise ValueError(f"{len(figures)} figures; allowed: 1 to {_MOST_FIGURES}")
    seen = dict[tuple[object, ...], int]()
    for figure in figures:
        key = (figure.name, figure.num_bytes, figure.node, figure.gpu)
        if key in seen:
            raise ValueError(f"line {figure.line}: the same figure is on line {seen[key]}; give each run a file of its own")
        seen[key] = figure.line


# --- a CSV table ----------------------------------------------------------------------------------------------------------------


def _tabled(lines: Sequence[str], context: Context) -> Iterator[Given]:
    rows = csv.reader(lines, strict=True)
    try:
        head = [name.strip() for name in next(rows, [])]
        _check_head(head)
        for cells in filter(None, rows):
            if len(cells) != len(head):
                raise ValueError(f"line {rows.line_num}: {len(cells)} cells; allowed: {len(head)}, as many as there are columns")
            row = dict(zip(head, map(str.strip, cells), strict=True))
            try:
                yield _given(row, rows.line_num, context)
            except ValueError as error:
                raise ValueError(f"line {rows.line_num}: {error}") from None
    except csv.Error as error:
        raise ValueError(f"line {rows.line_num}: no CSV: {error}") from None


def _check_head(head: Sequence[str]) -> None:
    known = (*_REQUIRED, *_OPTIONAL)
    wanted = f"the first line names columns: {', '.join(_REQUIRED)}, and perhaps {', '.join(_OPTIONAL)}"
    for name in head:
        if name not in known:
            raise ValueError(f"line 1: unknown column {shown(name)}; {wanted}{did_you_mean(name, known)}")
    if missing := [name for name in _REQUIRED if name not in head]:
        raise ValueError(f"line 1: no column {', '.join(missing)}; {wanted}")
    if len(set(head)) < len(head):
        raise ValueError(f"line 1: a column is there twice; {wanted}")


def _given(row: Mapping[str, str], line: int, context: Context) -> Given:
    name, shape = _name(row["metric"], context.known), context.shape
    unit = _unit(name, row["unit"], context.known)
    is_sized = bool(sizes_of(name, shape.num_nodes, context.profile))
    num_bytes = _size(name, row.get("size", ""), is_sized=is_sized)
    places = [_place(row.get(key, ""), key, most) for key, most in (("node", shape.num_nodes), ("gpu", shape.gpus_per_node))]
    return Given(line, name, _value(row["value"], unit), unit, num_bytes, *places)


def _name(text: str, known: KnownMetrics) -> str:
    """Return a metric or a collective; the programs of nccl-tests stand for theirs."""
    name = _PROGRAM.get(text.removesuffix("_perf"), text)
    if name in COLLECTIVES or name in UNMEASURED or known.unit_of(name) is not None:
        return name
    hint = did_you_mean(text, [*_PROGRAM, *UNMEASURED, *known.limited, *known.figures])
    raise ValueError(f"unknown metric {shown(text)}; allowed: a metric, or {', '.join(_PROGRAM)}{hint}")


def _unit(name: str, unit: str, known: KnownMetrics) -> str:
    wanted = _RATE if name in COLLECTIVES else UNMEASURED.get(name) or known.unit_of(name)
    if unit != wanted:
        raise ValueError(f"{name}: unit {shown(unit)}; allowed: {wanted} (nothing is converted)")
    return unit


def _value(text: str, unit: str) -> Value:
    if unit == "bool" and text in ("true", "false"):
        return text == "true"
    if unit == "text" and 0 < len(text) <= _MOST_TEXT and text.isprintable():
        return text
    if unit not in ("bool", "text") and _NUMBER.fullmatch(text) and is_finite(value := float(text)) and (value >= 0 or "/s" not in unit):
        return value
    least = "a finite number from 0" if "/s" in unit else "a finite number"
    allowed = {"bool": "true or false", "text": f"a text of 1 to {_MOST_TEXT} printable characters"}.get(unit, least)
    raise ValueError(f"value {shown(text)}; allowed: {allowed}")


def _size(name: str, text: str, *, is_sized: bool) -> int | None:
    if not is_sized:
        if text:
            raise ValueError(f"{name}: size {shown(text)}; allowed: none, since this metric is not of a message")
        return None
    if text == UNKNOWN:
        return None
    found = _SIZE.fullmatch(text)
    num_bytes = round(float(found["number"]) * SIZES[found["unit"] or "B"]) if found else 0
    if num_bytes < 1:
        raise ValueError(f"{name}: size {shown(text)}; allowed: {SIZE_ALLOWED}")
    return num_bytes


def _place(text: str, key: str, most: int) -> int:
    if text and not (_WHOLE.fullmatch(text) and int(text) < most):
        raise ValueError(f"{key} {shown(text)}; allowed: 0 to {most - 1}, or nothing")
    return int(text or 0)


# --- the output of nccl-tests ---------------------------------------------------------------------------------------------------


def _untagged(line: str) -> str:
    if not (found := _TAG.match(line)):
        return line
    rest = line[found.end() :].lstrip()
    return rest.replace(found["mpich"], " ") if found["mpich"] else rest


def _printed(lines: Sequence[str], shape: Shape, collective: str | None) -> Iterator[Given]:
    """Yield the slower bus bandwidth of out of place and in place for each row, and the wrong elements of each collective."""
    texts = [_untagged(line).rstrip() for line in lines]
    for hosts in _lists_of_ranks(texts):
        _check_ranks(hosts, shape)
    name, columns, wrong = collective, list[str](), dict[str, tuple[int, int]]()
    for number, text in enumerate(texts, start=1):
        if found := _STARTS.fullmatch(text):
            name = _started(found["name"], collective, number)
        elif _HEAD.fullmatch(text):
            columns = text.removeprefix("#").split()
        elif (found := _SUMMARY.fullmatch(text)) and int(found["wrong"]) and name:
            wrong[name] = number, max(wrong.get(name, (0, 0))[1], int(found["wrong"]))
        elif columns and _ROW.fullmatch(text):
            if name is None:
                known = ", ".join(COLLECTIVES)
                raise ValueError(f"line {number}: which collective? This output does not say; add --collective=NAME, one of {known}")
            cells = text.split()
            if len(cells) != len(columns):
                raise ValueError(f"line {number}: {len(cells)} cells below {len(columns)} columns: {shown(text)}")
            if int(cells[0]):  # old versions run a message of 0 bytes where one of 4 has no element for each rank
                yield Given(number, name, _slower(cells, columns, number), _RATE, int(cells[0]))
            if (counted := _sum_of_wrong(cells, columns, number)) is not None:
                wrong[name] = number, wrong.get(name, (0, 0))[1] + counted
    for one, (number, total) in wrong.items():
        yield Given(number, f"nccl_sizes.{one}.wrong", total, "elements")


def _started(program: str, collective: str | None, line: int) -> str:
    name = _PROGRAM.get(program)
    if name is None:
        raise ValueError(f"line {line}: {program:.40}_perf is of no collective that is judged; known: {', '.join(COLLECTIVES)}")
    if collective not in (None, name):
        raise ValueError(f"line {line}: this is {name}, and --collective={collective}")
    return name


def _lists_of_ranks(texts: Iterable[str]) -> Iterator[Mapping[str, str]]:
    """Yield the host of each rank for each output in a file: a number that comes again begins another list."""
    hosts = dict[str, str]()
    for found in filter(None, map(_RANK.fullmatch, texts)):
        if int(found["group"] or 0):
            raise ValueError("this output has groups of ranks (NCCL_TESTS_SPLIT), and its rates are of a part of the job")
        if found["rank"] in hosts:
            yield hosts
            hosts = {}
        hosts[found["rank"]] = found["host"]
    yield hosts


def _check_ranks(hosts: Mapping[str, str], shape: Shape) -> None:
    """Refuse an output whose own list of ranks is that of another job. A part of an output may have none."""
    num_hosts, asked = len(set(hosts.values())), f"--nodes={shape.num_nodes} --gpus-per-node={shape.gpus_per_node}"
    if hosts and (num_hosts, len(hosts)) != (shape.num_nodes, shape.num_nodes * shape.gpus_per_node):
        raise ValueError(f"this output has {plural(len(hosts), 'rank')} on {plural(num_hosts, 'host')}, and {asked} is another job")


def _slower(cells: Sequence[str], columns: Sequence[str], line: int) -> float:
    rates = [cell for cell, column in zip(cells, columns, strict=True) if column == "busbw" and cell != "N/A"]
    if not rates or not all(_NUMBER.fullmatch(rate) and float(rate) >= 0 for rate in rates):
        raise ValueError(f"line {line}: busbw {shown(', '.join(rates))}; allowed: finite numbers from 0")
    return min(map(float, rates))


def _sum_of_wrong(cells: Sequence[str], columns: Sequence[str], line: int) -> int | None:
    """Return the wrong elements of a row, from 1 million on written as 2.68435e+08; None where nobody counted them."""
    counts = [cell for cell, column in zip(cells, columns, strict=True) if column == "#wrong" and cell != "N/A"]
    if not all(_NUMBER.fullmatch(count) and float(count) >= 0 for count in counts):
        raise ValueError(f"line {line}: #wrong {shown(', '.join(counts))}; allowed: finite numbers from 0, or N/A")
    return sum(int(float(count)) for count in counts) if counts else None
