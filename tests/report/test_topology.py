"""Where ranks are: what `binding` writes is read again, nodes that are alike are drawn once, and any other text is text."""

from gpu_acceptance.inventory.pci_topology import Distance
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.topology import topology
from tests.report import samples
from tests.report.pages import parse
from tests.report.samples import binding_row, placement


def run(num_nodes=1, placement_of=placement):
    record = samples.two_nodes()
    ranks = [samples.identity(rank, nodes=num_nodes) for rank in range(8 * num_nodes)]
    return samples.of_ranks(record, ranks).model_copy(update={"rows": (binding_row(8 * num_nodes, placement_of),)})


def test_a_rank_has_its_gpu_numa_node_and_card():
    (kind,) = topology(run()).kinds
    assert kind.title == "node 0 (node-01.example)"
    assert [(numa.title, len(numa.ranks)) for numa in kind.numas] == [("NUMA node 0", 4), ("NUMA node 1", 4)]
    drawn = kind.numas[1].ranks[0]
    assert (drawn.rank, drawn.gpu, drawn.card, drawn.distance, drawn.style) == ("rank 4", "GPU 4, 0A:00.0", "mlx5_4", "PIX", "near")
    row = kind.rows[4]
    assert (row.rank, row.serial, row.place.pci_bus_id, row.place.cpus) == ("rank 4", "1653924100005", "00000000:0A:00.0", "48-95")
    assert kind.described == "1 node. 8 ranks on 2 NUMA nodes, with 8 nearest network cards: 8 by PIX. The table has each."


def test_frames_lie_below_each_other_with_their_ranks_inside():
    (kind,) = topology(run()).kinds
    bottom = 0.0
    for numa in kind.numas:
        assert numa.y > bottom
        bottom = numa.y + numa.height
        assert all(numa.y < one.y - 12 < one.y + 12 < bottom for one in numa.ranks)
    assert bottom < kind.height


def test_each_distance_that_binding_can_write_is_drawn():
    for distance in Distance:
        told = placement(0, cpus="0-3,8", card="mlx5_0 mlx5_1", distance=str(distance))
        place = topology(run(placement_of=lambda rank, told=told: told)).kinds[0].rows[0].place
        assert (place.cpus, place.card, place.distance) == ("0-3,8", "mlx5_0 mlx5_1", distance)
        assert topology(run(placement_of=lambda rank, told=told: told)).kinds[0].numas[0].ranks[0].style


def test_without_a_card_there_is_no_line_to_one():
    told = {"gpu": 0, "numa_node": "not supported", "cpus": "0-3", "card": "not there (there is no RDMA device)"}
    (kind,) = topology(run(placement_of=lambda rank: told)).kinds
    assert kind.numas[0].title == "NUMA node not supported"
    assert {(one.card, one.style) for one in kind.numas[0].ranks} == {("none told", "")}
    assert kind.rows[0].place.card == "not there (there is no RDMA device)"


def test_nodes_that_are_alike_are_drawn_once_and_one_that_is_not_by_itself():
    found = topology(run(4, lambda rank: placement(rank, distance="SYS" if rank == 21 else "PIX")))
    alike, odd = found.kinds
    assert alike.title == "nodes 0-1, 3, which are alike"
    assert (alike.rows[5].rank, alike.rows[5].serial) == ("local rank 5", "")
    assert odd.title == "node 2 (node-03.example)"
    assert [one.distance for one in odd.numas[1].ranks] == ["PIX", "SYS", "PIX", "PIX"]


def test_of_many_kinds_of_nodes_the_others_are_named():
    found = topology(run(12, lambda rank: placement(rank, cpus=str(rank // 8))))
    assert len(found.kinds) == 8
    assert found.note == "Not drawn, each unlike those above: 4 nodes, 8-11."


def test_of_many_ranks_on_a_node_the_first_are_drawn():
    record = run()
    ranks = [samples.identity(rank, gpus_per_node=40) for rank in range(40)]
    record = samples.of_ranks(record, ranks).model_copy(update={"rows": (binding_row(40),)})
    (kind,) = topology(record).kinds
    assert (len(kind.rows), kind.note) == (32, "The first 32 of 40 ranks.")


def test_a_rank_that_told_nothing_is_drawn_without_a_place():
    record = run()
    record = record.model_copy(update={"rows": (binding_row(7),)})
    assert topology(record).kinds[0].numas[-1].title == "NUMA node not told"


def test_where_nobody_told_there_is_no_picture():
    assert topology(samples.accepted()) is None
    assert "network cards" not in build_page(samples.accepted())


def test_words_of_a_machine_are_text():
    nasty = "<b onclick=alert(1)>\"'\x1b[31m"
    page, plain = (
        parse(build_page(run(placement_of=lambda rank, text=text: placement(0, numa_node=text, cpus=text, card=text))))
        for text in (nasty, "x")
    )
    assert page.shape == plain.shape
    assert page.unclosed == []
    assert {one.text.strip() for one in page.all("td")} > {nasty.replace("\x1b", "\\x1b")}
