"""Write the pages and blocks of README.md and docs/ that are made from code: `python -m tools.make_pages`."""

import argparse
import ast
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from gpu_acceptance.cli.verbs import make_parser
from gpu_acceptance.folder.files import read_results
from gpu_acceptance.inventory.fabric import FabricClass
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.ending import last_screen, where_it_is
from gpu_acceptance.report.summary_text import summary_lines
from gpu_acceptance.run import own_files
from gpu_acceptance.run.settings import OPTIONS, Option
from gpu_acceptance.thresholds import contract_file, schema
from gpu_acceptance.thresholds.fabrics import fabrics
from gpu_acceptance.thresholds.limit import ByNodes
from gpu_acceptance.thresholds.profile import BASE, load_profile, shipped_dir
from gpu_acceptance.thresholds.schema import Match
from tools.conditions_page import conditions_page
from tools.kernel_log_page import kernel_log_page
from tools.limits_page import limits_page
from tools.markdown import MADE_BY, cell, escaped, with_block
from tools.nfs_block import nfs_block
from tools.remedies_page import remedies_page
from tools.suite_pages import check_block, fixtures_block, parameters_page, validations_page
from tools.support import support_block, support_page

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PACKAGE = ROOT / "src" / "gpu_acceptance"
RESULTS_SCHEMA = Path("src/gpu_acceptance/report/results.schema.json")

OPTIONS_HEAD = f"""# Options

{MADE_BY} Write each option as `--option=VALUE`. Every rank gets the same ones: after `gpu-acceptance run`, after `-m pytest acceptance/`,
after the name of a launcher's script, or in `make accept ARGS="--level=quick"`. `gpu-acceptance run --help` lists them in short.

Most options of pytest work too. `-k`, a file or a node id runs a part of the suite; what is left out is named, and the run is INCOMPLETE.
"""

COMMANDS_HEAD = f"""# Commands

{MADE_BY} After `make` the program is `.venv/bin/gpu-acceptance`; from a bare checkout it is `PYTHONPATH=src python -m gpu_acceptance`.

"""


def main() -> None:
    """Write all of them."""
    for path, text in PAGES.items():
        (ROOT / path).write_text(text(), encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")


def readme() -> str:
    """README.md with its blocks as the committed runs and the code have them."""
    text = README.read_text(encoding="utf-8")
    for name, block in BLOCKS.items():
        text = with_block(text, name, block())
    return text


def last_screen_of(sample: str) -> str:
    """The last screen of `gpu-acceptance run` for this sample, on a terminal of 100 columns."""
    folder = ROOT / "reports" / "samples" / sample
    record = read_results(folder)
    tail = [line.replace(f"{ROOT}/", "") for line in where_it_is(folder)]
    rows = last_screen(record.conclusion.verdict, list(summary_lines(record)), tail, width=100, in_colour=False)
    return "".join(f"{row}\n" for row in ("```text", *rows, "```"))


# --- options -------------------------------------------------------------------------------------------------------------------


def options_page() -> str:
    """docs/options.md."""
    return OPTIONS_HEAD + "".join(f"\n## {title}\n\n{''.join(map(_option, options))}".rstrip() + "\n" for title, options in OPTIONS.items())


def _option(option: Option) -> str:
    usage = option.name if option.metavar is None else f"{option.name}={option.metavar}"
    repeats = " May be given several times." if option.repeats else ""
    return f"### {option.name}\n\n`{usage}`: {escaped(option.help)}.{repeats}\n\n{option.details}".rstrip() + "\n\n"


SUITE_OPTIONS = {option.name for options in OPTIONS.values() for option in options}

# --- commands ------------------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """docs/commands.md."""
    parser = make_parser()
    return f"{COMMANDS_HEAD}{escaped(str(parser.description)).strip()}\n{''.join(map(_command, _leaves(parser)))}"


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all verbs that have no verbs of their own."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield parser
    for group in groups:
        for verb in group.choices.values():
            yield from _leaves(verb)


def _command(parser: argparse.ArgumentParser) -> str:
    actions = [action for action in parser._actions if action.dest != "help"]
    if {name for action in actions for name in action.option_strings} >= SUITE_OPTIONS:
        actions = [action for action in actions if not SUITE_OPTIONS.intersection(action.option_strings)]
        suite, more = " [OPTION...]", "| `OPTION` | the [options of the suite](options.md) |\n"
    else:
        suite, more = "", ""
    usage = " ".join([parser.prog, *map(_usage, actions)]) + suite
    name = parser.prog.partition(" ")[2]
    arguments = "".join(f"| `{_name(action)}` | {cell(_help(parser, action))} |\n" for action in actions) + more
    table = f"\n| argument | what |\n|---|---|\n{arguments}" if actions else ""
    return f"\n## {name}\n\n{escaped(str(parser.description))}\n\n```text\n{usage}\n```\n{table}"


def _name(action: argparse.Action) -> str:
    """`--sha256=DIGEST`, `DIR`."""
    if not action.option_strings:
        return str(action.metavar)
    return action.option_strings[-1] if action.nargs == 0 else f"{action.option_strings[-1]}={action.metavar}"


def _usage(action: argparse.Action) -> str:
    name = f"{_name(action)}..." if action.nargs == "+" else _name(action)
    return name if action.required else f"[{name}]"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return str(action.help) % {**vars(action), "prog": parser.prog}


# --- code -----------------------------------------------------------------------------------------------------------------------


def page_with_blocks(path: Path, blocks: Mapping[str, Callable[[], str]]) -> str:
    """Return a page by hand, with its generated blocks as the code has them."""
    page = (ROOT / path).read_text(encoding="utf-8")
    for name, block in blocks.items():
        page = with_block(page, name, block())
    return page


def packages_block() -> str:
    """One row per package; a package imports those above it only."""
    imported = {path.parent.name: _packages_imported(path.parent) - {path.parent.name} for path in PACKAGE.glob("*/__init__.py")}
    docs = {name: ast.get_docstring(ast.parse((PACKAGE / name / "__init__.py").read_text(encoding="utf-8"))) for name in imported}
    rows = [f"| `{name}/` | {cell(str(docs[name]))} |\n" for name in TopologicalSorter(imported).static_order()]
    return f"| package | what |\n|---|---|\n{''.join(rows)}"


def _packages_imported(folder: Path) -> set[str]:
    nodes = (node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    modules = (node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module)
    return {module.split(".")[1] for module in modules if module.startswith("gpu_acceptance.")}


def fabrics_block() -> str:
    """One row per network between nodes: by what it is chosen, beside which GPUs, and all_reduce by the number of nodes."""
    rows = [_fabric_row(name, match) for name, match in fabrics(shipped_dir()).items()]
    head = "| fabric | chosen by | beside | `nccl.all_reduce.busbw_internode`, 4 GiB |\n|---|---|---|---|\n"
    return head + "".join(rows)


def _fabric_row(name: str, match: Match | None) -> str:
    profiles = (match.profiles if match else None) or ["h100-sxm", "h200-sxm"]
    keys = match.fabric if match else None
    chosen = (
        str(FabricClass(keys.link, keys.ports or 0, keys.gbit_per_s, keys.gpus or 8, keys.driver or "")) if keys else "`--fabric` alone"
    )
    limit = load_profile(BASE, shipped_dir(), fabric=name).limits.get("nccl.all_reduce.busbw_internode")
    bound = limit.at_least if limit else None
    by_nodes = bound.nodes if isinstance(bound, ByNodes) else {"any number": bound}
    floors = [f"{text} nodes: {f'{number:g} GB/s' if isinstance(number, float) else 'recorded'}" for text, number in by_nodes.items()]
    return f"| `{name}` | {chosen} | {', '.join(profiles)} | {cell('; '.join(floors).replace('any number nodes', 'any'))} |\n"


def results_schema() -> str:
    """The JSON schema of `results.json`, for whoever reads it with other tools."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunRecord.model_json_schema()}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


WITH_BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    Path("CONTRIBUTING.md"): {"check": check_block, "fixtures": fixtures_block},
    Path("docs/how-it-works.md"): {"packages": packages_block},
    Path("docs/fabrics.md"): {"fabrics": fabrics_block},
    Path("docs/shared-fs.md"): {"nfs": nfs_block},
}

SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "schema.json": schema.json_schema,
    "contract.schema.json": contract_file.json_schema,
    "site.schema.json": own_files.json_schema,
}


def schema_text(make: Callable[[], dict[str, Any]]) -> str:
    """Return a schema of a YAML file, for editors."""
    return json.dumps(make(), indent=2) + "\n"


PAGES: dict[Path, Callable[[], str]] = {
    Path("docs/options.md"): options_page,
    Path("docs/commands.md"): commands_page,
    Path("docs/validations.md"): validations_page,
    Path("docs/parameters.md"): parameters_page,
    Path("docs/limits.md"): limits_page,
    Path("docs/support.md"): support_page,
    Path("docs/remedies.md"): remedies_page,
    Path("docs/node-conditions.md"): conditions_page,
    Path("docs/kernel-log.md"): kernel_log_page,
    RESULTS_SCHEMA: results_schema,
    **{Path("thresholds", name): partial(schema_text, make) for name, make in SCHEMAS.items()},
    **{path: partial(page_with_blocks, path, blocks) for path, blocks in WITH_BLOCKS.items()},
}

BLOCKS: dict[str, Callable[[], str]] = {
    "accepted": partial(last_screen_of, "h200x2-accepted"),
    "rejected": partial(last_screen_of, "h100x2-rejected"),
    "support": support_block,
}

if __name__ == "__main__":
    main()
