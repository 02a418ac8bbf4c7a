"""The machines on the page: facts that nodes share once, odd nodes by name, what carries data, and where each rank is."""

import pytest

from gpu_acceptance.inventory.pci_topology import Distance
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.machines import fabric, inventory, topology
from tests.report import sample_rows, samples
from tests.report.pages import described, parse, shapes
from tests.report.sample_pages import section_of
from tests.report.sample_rows import binding_row, figure, placement

OTHER = {"kernel": "6.8.0-99-generic"}
CARDS = "8 x MT4129, MT_0000000838, 28.39.1002"


# --- inventory ------------------------------------------------------------------------------------------------------------------


def record_of(*changes):
    """A run on as many nodes of one GPU, each with these changes of its facts; None: it told nothing."""
    ranks = []
    for node, changed in enumerate(changes):
        identity = samples.identity(node, gpus_per_node=1, nodes=len(changes))
        facts = {} if changed is None else samples.inventory(node, **changed)
        bounds = None if node == 0 else (0.0001, 0.0003)
        ranks.append(identity.model_copy(update={"inventory": facts, "clock_ahead_s": bounds}))
    return samples.of_ranks(samples.accepted(), ranks)


def text_of(*changes):
    return section_of(build_page(record_of(*changes)), "machines").split("Inventory", 1)[1]


def fact_of(name, *changes):
    return next(fact for fact in inventory(record_of(*changes)).facts if fact.name == name)


def test_nodes_that_are_alike_are_one_line_and_one_table():
    found = inventory(record_of({}, {}, {}))
    assert [fact.name for fact in found.facts] == ["cpu", "kernel", "mounts"]
    assert all(fact.usual and not fact.others for fact in found.facts)
    assert [node.odd for node in found.nodes] == [[], [], []]
    text = text_of({}, {}, {})
    assert "All nodes are alike in all that is compared below." in text
    assert text.count("6.8.0-45-generic") == 1


def test_a_nodes_own_serial_numbers_and_clock_are_no_difference():
    first, second = inventory(record_of({}, {})).nodes
    assert dict(first.own) == {
        "product_serial": "PR-EXAMPLE-001",
        "chassis_serial": "CH-EXAMPLE-001",
        "clock": "that of node 0, to which the others are compared",
    }
    assert dict(second.own)["clock"] == "+0.200 ms, give or take 0.100 ms"


def test_the_odd_node_is_named_with_both_values():
    kernel = fact_of("kernel", {}, OTHER, {})
    assert (kernel.usual, kernel.others) == ("6.8.0-45-generic", ("node 1 (node-02.example): 6.8.0-99-generic",))
    assert [node.odd for node in inventory(record_of({}, OTHER, {})).nodes] == [[], [("kernel", OTHER["kernel"])], []]
    text = text_of({}, OTHER, {})
    assert "! DIFFERS: node 1 (node-02.example): kernel." in text
    assert "kernel 6.8.0-45-generic! DIFFERS: node 1 (node-02.example): 6.8.0-99-generic" in text
    assert "node 1 (node-02.example): ! DIFFERS in 1 fact" in text


def test_between_two_nodes_there_is_no_majority_and_both_are_named():
    kernel = fact_of("kernel", {}, OTHER)
    assert kernel.usual == ""
    assert kernel.others == ("node 0 (node-01.example): 6.8.0-45-generic", "node 1 (node-02.example): 6.8.0-99-generic")
    assert "kernel no majority! DIFFERS: node 0" in text_of({}, OTHER)


def test_a_fact_that_one_node_alone_tells_is_a_difference():
    governor = fact_of("governor", {}, {"governor": "powersave"}, {})
    assert (governor.usual, governor.others) == ("not told", ("node 1 (node-02.example): powersave",))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (({},), "One node: there is nothing to compare it with."),
        ((None,), "None recorded."),
        ((None, None), "None recorded."),
    ],
)
def test_a_run_without_a_comparison_says_so(changes, text):
    assert text in text_of(*changes)


def test_a_node_that_told_nothing_is_left_out_of_the_comparison():
    found = inventory(record_of({}, None, {}))
    assert [node.odd for node in found.nodes] == [[], []]
    assert [node.name for node in found.nodes] == ["node 0 (node-01.example)", "node 2 (node-03.example)"]


# --- fabric ---------------------------------------------------------------------------------------------------------------------


def with_fabric(links=lambda rank: 18):
    """A run that looked at links, fabric and NCCL's log."""

    def health(rank):
        anomaly = "" if links(rank) is not None else "not supported"
        yield sample_rows.figure("gpu_health.nvlink.active", links(rank), "count", anomaly=anomaly)
        yield sample_rows.figure("gpu_health.fabric.state", "completed", "text")

    told = {"nccl.all_reduce.algorithm": "NVLS", "nccl.transport.intranode": "P2P"}
    rows = (
        sample_rows.row("acceptance/test_gpu_health.py::test_nvlink", health, []),
        sample_rows.row("acceptance/test_nccl.py::test_physics", lambda rank: [figure(*one, "text") for one in told.items()], []),
    )
    return with_cards(samples.with_rows(samples.accepted(), *samples.accepted().rows, *rows), CARDS)


def with_cards(record, cards):
    return samples.of_ranks(
        record, [one.model_copy(update={"inventory": {**one.inventory, "rdma_devices": cards}}) for one in record.ranks]
    )


def test_links_fabric_algorithm_transport_and_cards_stand_in_one_line():
    line = f"NVLinks up on each GPU: 18; NVLink fabric: completed; NCCL: NVLS, P2P; RDMA devices: {CARDS}"
    assert fabric(with_fabric()) == line
    assert line in section_of(build_page(with_fabric()), "identity")


@pytest.mark.parametrize(
    ("links", "text"), [(lambda rank: 17 if rank == 3 else 18, "17, 18"), (lambda rank: None, "not told")], ids=["different", "none"]
)
def test_ranks_that_differ_have_all_their_values_and_a_missing_one_is_named(links, text):
    assert fabric(with_fabric(links)).startswith(f"NVLinks up on each GPU: {text}; NVLink fabric: completed; ")


def test_a_machine_without_gpus_has_cards_alone():
    assert fabric(with_cards(samples.cpu(), "none")) == "RDMA devices: none"


# --- topology -------------------------------------------------------------------------------------------------------------------


def run(num_nodes=1, placement_of=placement, gpus_per_node=8, num_told=None):
    ranks = [samples.identity(rank, gpus_per_node, num_nodes) for rank in range(gpus_per_node * num_nodes)]
    row = binding_row(len(ranks) if num_told is None else num_told, placement_of)
    return samples.of_ranks(samples.two_nodes(), ranks).model_copy(update={"rows": (row,)})


def words_of(kind, style=""):
    """The titles of the frames, or with "across" the words of the boxes and lines."""
    return [one.text for one in shapes(kind.svg, "text", style)]


def test_a_rank_has_its_gpu_numa_node_and_card():
    (kind,) = topology(run()).kinds
    assert kind.title == "node 0 (node-01.example)"
    assert words_of(kind) == ["NUMA node 0", "NUMA node 1"]
    words = words_of(kind, "across")
    assert words[4 * 4 : 5 * 4] == ["PIX", "rank 4", "GPU 4, 0A:00.0", "mlx5_4"]
    assert len(shapes(kind.svg, "path", "near")) == 8
    rank, serial, place = kind.rows[4]
    assert (rank, serial, place.pci_bus_id, place.cpus) == ("rank 4", "1653924100005", "00000000:0A:00.0", "48-95")
    assert described(kind.svg) == "1 node. 8 ranks on 2 NUMA nodes, with 8 nearest network cards: 8 by PIX. The table has each."


def test_frames_lie_below_each_other_with_their_ranks_inside():
    (kind,) = topology(run()).kinds
    boxes = [float(one.attributes["y"]) for one in shapes(kind.svg, "rect", "outline")]
    bottom, num_inside = 0.0, 0
    for frame in shapes(kind.svg, "rect", "frame"):
        top, height = float(frame.attributes["y"]), float(frame.attributes["height"])
        assert top > bottom
        bottom = top + height
        num_inside += sum(top < y < y + 24 < bottom for y in boxes)
    assert num_inside == len(boxes) == 8
    assert bottom < float(parse(kind.svg).all("svg")[0].attributes["viewbox"].split()[3])


@pytest.mark.parametrize("distance", Distance)
def test_each_distance_that_binding_can_write_is_drawn(distance):
    told = placement(0, cpus="0-3,8", card="mlx5_0 mlx5_1", distance=str(distance))
    (kind,) = topology(run(placement_of=lambda rank: told)).kinds
    *_, place = kind.rows[0]
    assert (place.cpus, place.card, place.distance) == ("0-3,8", "mlx5_0 mlx5_1", distance)
    assert sum(len(shapes(kind.svg, "path", style)) for style in ("near", "middle", "far")) == 8


def test_without_a_card_there_is_no_line_to_one():
    told = {"gpu": 0, "numa_node": "not supported", "cpus": "0-3", "card": "not there (there is no RDMA device)"}
    (kind,) = topology(run(placement_of=lambda rank: told)).kinds
    assert words_of(kind) == ["NUMA node not supported"]
    assert words_of(kind, "across")[2::3] == ["none told"] * 8
    assert shapes(kind.svg, "rect", "outline") == []
    assert kind.rows[0][2].card == "not there (there is no RDMA device)"


def test_nodes_that_are_alike_are_drawn_once_and_an_odd_one_by_itself():
    alike, odd = topology(run(4, lambda rank: placement(rank, distance="SYS" if rank == 21 else "PIX"))).kinds
    assert alike.title == "nodes 0-1, 3, which are alike"
    assert alike.rows[5][:2] == ("local rank 5", "")
    assert odd.title == "node 2 (node-03.example)"
    assert words_of(odd, "across")[4 * 4 :: 4] == ["PIX", "SYS", "PIX", "PIX"]


def test_of_many_kinds_of_nodes_the_others_are_named_and_of_many_ranks_the_first_are_drawn():
    found = topology(run(12, lambda rank: placement(rank, cpus=str(rank // 8))))
    assert len(found.kinds) == 8
    assert found.note == "Not drawn, each unlike those above: 4 nodes, 8-11."
    (kind,) = topology(run(gpus_per_node=40)).kinds
    assert (len(kind.rows), kind.note) == (32, "The first 32 of 40 ranks.")


def test_a_rank_that_told_nothing_has_no_place_and_where_none_told_one_there_is_no_picture():
    assert words_of(topology(run(num_told=7)).kinds[0])[-1] == "NUMA node not told"
    assert topology(samples.accepted()) is None
    assert "network cards" not in build_page(samples.accepted())
