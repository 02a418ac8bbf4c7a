"""The site's file: what it declares, and each way in which it can be wrong, said with file, key, line, value and what is allowed."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory.declared import DeclaredNode
from gpu_acceptance.run.own_files import MOST_NODES, json_schema, read_site
from gpu_acceptance.thresholds.file import LimitsError
from gpu_acceptance.thresholds.profile import shipped_dir, with_site
from tests.judging import shipped_profile
from tests.report import samples

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "site.yaml"


def site(folder, text):
    path = folder / "site.yaml"
    path.write_text(text)
    return read_site(path)


def test_the_example_declares_four_nodes_in_two_racks():
    assert read_site(EXAMPLE).nodes == (
        DeclaredNode(host="node-00", gpus=8, rack="B2"),
        DeclaredNode(host="node-01", gpus=8, rack="B2"),
        DeclaredNode(host="node-02", gpus=8, rack="B3, unit 12"),
        DeclaredNode(host="node-03", gpus=4, rack="B3"),
    )
    assert read_site(EXAMPLE).racks["node-03"] == "B3"


def test_the_schema_is_published_and_holds_for_the_example():
    schema = json.loads((shipped_dir() / "site.schema.json").read_text())
    assert schema == json_schema()
    jsonschema.validate(yaml.safe_load(EXAMPLE.read_text()), schema)


def test_a_node_may_have_nothing_to_say(tmp_path):
    assert site(tmp_path, "gpus_per_node: 0\nnodes: {a: {}}").nodes == (DeclaredNode(host="a", gpus=0),)


GPUS = "a whole number from 0: the GPUs that exist on"
OWN = f"{GPUS} this node; without the key: gpus_per_node"
HOST = "not a host name; allowed: letters, digits, '.', '_' and '-', at most 253, a letter or digit first; a number in quotes"
NODES = f"a mapping of 1 to {MOST_NODES} host names, each to a mapping of gpus and rack ({{}} where there is nothing to say)"
EACH = f"{GPUS} each node that does not say otherwise"
RACK = "a label of 1 to 64 printable ASCII characters, in quotes where it looks like a number"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty; a mapping is wanted"),
        ("gpus_per_node: 8", f"nodes: is missing; needed: {NODES}"),
        ("gpus_per_node: 8\nnodes: {}", f"nodes (line 2): {{}} is not allowed; allowed: {NODES}"),
        ("gpus_per_node: 8\nnodes: [a, b]", f"nodes (line 2): ['a', 'b'] is not allowed; allowed: {NODES}"),
        ("nodes:\n  a: {gpus: eight}", f"nodes.a.gpus (line 2): 'eight' is not allowed; allowed: {OWN}"),
        ("nodes:\n  a: {gpus: -1}", f"nodes.a.gpus (line 2): -1 is not allowed; allowed: {OWN}"),
        ("nodes:\n  a: {gpus: true}", f"nodes.a.gpus (line 2): True is not allowed; allowed: {OWN}"),
        ("gpus_per_node: 8.0\nnodes: {a: {}}", f"gpus_per_node (line 1): 8.0 is not allowed; allowed: {EACH}"),
        ("nodes:\n  a: {}", "the file: nodes.a has no gpus, and there is no gpus_per_node that would hold for it"),
        ("gpus_per_node: 8\nnodes:\n  a:\n    rak: B2", "nodes.a.rak (line 4): unknown key; known: gpus, rack; did you mean 'rack'?"),
        (
            "gpus_per_nodes: 8\nnodes: {a: {}}",
            "gpus_per_nodes (line 1): unknown key; known: gpus_per_node, nodes; did you mean 'gpus_per_node'?",
        ),
        ("gpus_per_node: 8\nnodes: {a: B2}", "nodes.a (line 2): 'B2' is not allowed; allowed: a mapping of gpus and rack, or {}"),
        ("gpus_per_node: 8\nnodes: {a: {rack: 12}}", f"nodes.a.rack (line 2): 12 is not allowed; allowed: {RACK}"),
        ('gpus_per_node: 8\nnodes: {a: {rack: ""}}', f"nodes.a.rack (line 2): '' is not allowed; allowed: {RACK}"),
        ('gpus_per_node: 8\nnodes: {a: {rack: "B\\n2"}}', f"nodes.a.rack (line 2): 'B\\n2' is not allowed; allowed: {RACK}"),
        ("gpus_per_node: 8\nnodes: {12: {}}", f"nodes.12 (line 2): {HOST}"),
        ("gpus_per_node: 8\nnodes: {-a: {}}", f"nodes.-a (line 2): {HOST}"),
        ("gpus_per_node: 8\nnodes:\n  a: {}\n  a: {}", "line 4: key 'a' is given twice; first in line 3"),
        ("gpus_per_node: 8\nnodes:\n  a:", "line 3, column 5: no value is given; leave the key out or write one"),
    ],
)
def test_a_mistake_is_reported_with_key_line_value_and_what_is_allowed(tmp_path, text, says):
    with pytest.raises(LimitsError, match=f"^{re.escape(f'site.yaml: {says}')}$"):
        site(tmp_path, text)


def test_too_many_nodes(tmp_path):
    lines = "\n".join(f"  n{number}: {{}}" for number in range(MOST_NODES + 1))
    with pytest.raises(LimitsError, match=re.escape(f"allowed: {NODES}")):
        site(tmp_path, f"gpus_per_node: 8\nnodes:\n{lines}")


@pytest.mark.parametrize(("make", "says"), [(Path.mkdir, "is not a regular file"), (lambda path: None, "there is no such file")])
def test_a_file_that_is_none(tmp_path, make, says):
    path = tmp_path / "site.yaml"
    make(path)
    with pytest.raises(LimitsError, match=f"^site.yaml: {says}: '{path}'$"):
        read_site(path)


@given(st.text(max_size=200))
def test_any_text_is_a_site_or_one_readable_error(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "site.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        read_site(path)
        said = ""
    except LimitsError as error:
        said = str(error)
    assert said.startswith("site.yaml: ") or not said
    assert said.replace("\n", "").isprintable()


def test_a_site_counts_into_the_digest_and_takes_back_that_nothing_is_asked():
    profile = shipped_profile("cpu")
    declared = with_site(profile, read_site(EXAMPLE).digest)
    assert declared.digest != profile.digest
    assert [file.file for file in declared.files] == ["base.yaml", "cpu.yaml", "site.yaml"]
    assert profile.not_applicable.keys() - declared.not_applicable.keys() == {"environment.site*"}
    other = replace(read_site(EXAMPLE).digest, sha256="0" * 64)
    assert with_site(profile, other).digest != declared.digest


def test_a_rack_stands_beside_the_host_wherever_a_rank_is_named():
    identity = samples.identity(5).model_copy(update={"rack": "B2"})
    assert identity.place == "node-01.example, rack B2, GPU 5, serial 1653924100006"
    assert identity.node_place == "node-01.example, rack B2"
    assert samples.identity(5).place == "node-01.example, GPU 5, serial 1653924100006"
