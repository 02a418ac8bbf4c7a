"""One table of XIDs: nothing that NVIDIA takes for a fault is called harmless, and nothing unknown is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory.xids import Remedy, catalogue, links, meaning_of, meanings

MEANINGS = meanings()
APPLICATION = {13, 25, 31, 43, 45, 137}
# RESET_GPU or RESTART_BM in the catalogue's column of immediate actions, or one of its workflows that ends in one.
RESET_BY_THE_CATALOGUE = {46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 150, 155, 156, 158, 79, 74}


@pytest.mark.parametrize("number", range(144, 174))
def test_the_newest_numbers_are_all_there(number):
    assert meaning_of(number) is MEANINGS[number]


@pytest.mark.parametrize("meaning", MEANINGS.values(), ids=str)
def test_each_meaning_has_a_name_and_one_sentence_of_advice(meaning):
    assert meaning.name
    assert meaning.advice.endswith(".")
    assert ". " not in meaning.advice


def test_only_what_every_source_blames_on_the_application_is_its_own_fault():
    assert {number for number, meaning in MEANINGS.items() if meaning.is_application} == APPLICATION


def test_nothing_is_to_be_ignored_but_what_an_application_or_a_person_did():
    assert {number for number, meaning in MEANINGS.items() if meaning.remedy == Remedy.IGNORE} == {43, 45, 106, 107}


@pytest.mark.parametrize("number", sorted(RESET_BY_THE_CATALOGUE))
def test_the_remedy_is_never_weaker_than_the_catalogues(number):
    assert meaning_of(number).remedy in {Remedy.RESET_GPU, Remedy.REBOOT_NODE, Remedy.CHECK_LINK}


@pytest.mark.parametrize(
    ("remedy", "numbers"),
    [
        (Remedy.RESTART_APPLICATION, (13, 94)),
        (Remedy.RESET_GPU, (48, 63, 119)),
        (Remedy.REBOOT_NODE, (64, 79, 95)),
        (Remedy.CHECK_LINK, (74, 149)),
        (Remedy.CHECK_SEATING, (54,)),
        (Remedy.FIELD_DIAGNOSTICS, (92, 172)),
    ],
)
def test_remedies_of_the_most_common(remedy, numbers):
    assert {meaning_of(number).remedy for number in numbers} == {remedy}


@pytest.mark.parametrize("number", [0, 5, 51, 138, 174, 185, 999_999_999])
def test_an_unknown_number_is_no_reason_to_be_calm(number):
    meaning = meaning_of(number)
    assert (meaning.number, meaning.name, meaning.remedy, meaning.is_application) == (
        number,
        "not in the table",
        Remedy.CONTACT_SUPPORT,
        False,
    )
    assert meaning.advice.startswith("In no source of this table: treat it as a fault of the GPU or its driver")
    assert "harmless" not in str(meaning)


@pytest.mark.parametrize(
    ("action", "remedy"),
    [
        ("0x1 (GPU Reset Required)", Remedy.RESET_GPU),
        ("0x2 (Node Reboot Required)", Remedy.REBOOT_NODE),
        ("0x2 (OS Reboot)", Remedy.REBOOT_NODE),
        ("0x1 (PF FLR)", Remedy.RESET_GPU),
        ("0x4 (Drain and Reset)", Remedy.RESET_GPU),
        ("0x0 (None)", Remedy.IGNORE),
    ],
)
def test_xid_154_says_itself_what_the_gpu_needs(action, remedy):
    meaning = meaning_of(154, f"GPU recovery action changed from 0x0 (None) to {action}")
    assert meaning.remedy == remedy
    assert meaning.advice == "It sums up the XIDs beside it, which give the cause."


@pytest.mark.parametrize("text", ["", "GPU recovery action changed from 0x0 (None) to 0x9 (Pray)", "to 0x0 (None)", "None"])
def test_an_xid_154_in_other_words_is_one_for_support(text):
    assert meaning_of(154, text).remedy == Remedy.CONTACT_SUPPORT


def test_the_text_of_another_xid_changes_nothing():
    assert meaning_of(79, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)") is MEANINGS[79]


@given(st.integers(), st.text())
def test_every_number_and_text_has_a_meaning(number, text):
    assert meaning_of(number, text).number == number


ROWS = [
    (number, unit, status, remedy)
    for number, units in links().items()
    for unit, rules in units.items()
    for remedy in (Remedy.IGNORE, Remedy.RESTART_APPLICATION, Remedy.RESET_GPU)
    for status in getattr(rules, remedy.name)
]


def link_event(number, unit, severity, status, information="0x00000000"):
    return meaning_of(number, f"{unit} {severity} XC0 i0 Link 13 ({information} {status} 0x00000000 0x00000000)")


@pytest.mark.parametrize(("number", "unit", "status", "remedy"), ROWS)
def test_a_link_event_that_is_not_fatal_has_the_remedy_of_its_row(number, unit, status, remedy):
    assert link_event(number, unit, "Nonfatal", status).remedy == remedy
    assert link_event(number, f"{unit}_PIPE0/x", "Nonfatal", status).remedy == remedy  # drivers write a unit in two ways
    assert link_event(number, f"{unit}  ", " Nonfatal ", status).remedy == remedy  # and pad the columns
    assert link_event(number, unit, "Fatal", status) is MEANINGS[number]


@pytest.mark.parametrize("number", range(144, 150))
def test_a_link_event_without_a_row_has_the_remedy_of_its_severity(number):
    assert link_event(number, "NEW_UNIT", "Nonfatal", "0x40000000").remedy == Remedy.IGNORE
    assert meaning_of(number, "NEW_UNIT Nonfatal XC0 i0 Link 02").remedy == Remedy.IGNORE
    for text in ("", "NEW_UNIT XC0", "NEW_UNIT Fatal XC0 i0 Link 02", "a Nonfatal, NEW_UNIT Fatal XC0"):
        assert meaning_of(number, text) is MEANINGS[number]


@pytest.mark.parametrize(("number", "unit", "status"), [(145, "RLW_TAGSTATE", "0x00000003"), (149, "NETIR_MFDE_EVENT", "0x00000002")])
def test_a_status_that_a_known_unit_does_not_have_is_in_doubt(number, unit, status):
    meaning = link_event(number, unit, "Nonfatal", status)
    assert (meaning.needs_repair, meaning.doubt) == (False, f"{unit} has no error status {status}")
    assert link_event(number, unit, "Fatal", status).needs_repair


@pytest.mark.parametrize(
    ("information", "remedy"), [("0x000004c2", Remedy.RESET_GPU), ("0x00000086", Remedy.RESET_GPU), ("0x000000c2", Remedy.IGNORE)]
)
def test_a_link_event_that_left_its_containment_resets_the_gpu(information, remedy):
    assert link_event(145, "RLW_RXPIPE", "Nonfatal", "0x00000001", information).remedy == remedy


def test_150_is_a_fault_whatever_its_line_says():
    assert meaning_of(150, "MSE_WATCHDOG Nonfatal XC0 i0 Link -1 (0x00000000 0x00000000)").remedy == Remedy.RESET_GPU


def test_the_table_names_its_source():
    assert catalogue().url.startswith("https://docs.nvidia.com/deploy/xid-errors/")
    assert catalogue().version
