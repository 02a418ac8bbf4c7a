"""Whose bits are held against whose."""

import re

import pytest
import torch

from gpu_acceptance.measure.corruption.survey import SHORT, differing_works, kind_of, odd_kind

H200, H100 = "NVIDIA H200, 132 SMs, torch 2.11.0", "NVIDIA H100 80GB HBM3, 132 SMs, torch 2.11.0"
WORKS = ("mm_bf16 8192x8192x8192", "mm_bf16 8191x8193x4099", "sort 8192x8192")


def fingerprint(*works):
    return "".join(work * SHORT for work in works)


def differing(own, *others, kind=H200):
    """`others` are fingerprints of ranks of the same kind."""
    return differing_works(fingerprint(*own), kind, WORKS, [(kind, fingerprint(*one)) for one in (own, *others)])


def test_a_kind_is_the_hardware_and_the_libraries_under_it():
    versions = {"torch": "2.11.0", "cuda": "13.0", "driver": "580.159", "python": "3.12.3", "kernel": "6.8"}
    kind = kind_of(torch.device("cpu"), versions)
    assert re.fullmatch(r"CPU with [\w ]+, \d+ threads, torch 2\.11\.0, cuda 13\.0, driver 580\.159", kind)
    assert kind_of(torch.device("cpu"), {**versions, "torch": "2.12.0"}) != kind


@pytest.mark.parametrize("kinds", [[H200], [H200] * 8, [H200, H100, H200]])
def test_a_rank_of_the_most_common_kind_is_compared(kinds):
    assert odd_kind(H200, kinds) == ""


def test_another_model_is_not_compared_with_most():
    assert odd_kind(H100, [H200, H100, H200]) == f"not compared: this is {H100}; most ranks are {H200}"


@pytest.mark.parametrize("own", [H200, H100])
def test_where_no_kind_is_that_of_most_nobody_is_compared(own):
    assert odd_kind(own, [H200, H100, H200, H100]) == f"not compared: this is {own}; of 4 ranks, no kind is that of most"


def test_equal_bits_differ_in_nothing():
    assert differing("abc", "abc", "abc") == ""


def test_of_a_minority_the_works_are_named_and_of_the_others_none():
    assert differing("aXY", "abc", "abc") == "differs in mm_bf16 8191x8193x4099, sort 8192x8192"
    assert differing("abc", "aXY", "abc") == ""


def test_of_a_tie_both_are_named():
    assert differing("abc", "abX") == differing("abX", "abc") == "differs in sort 8192x8192"


def test_a_rank_without_a_peer_differs_from_nobody():
    assert differing("abc") == ""


def test_ranks_of_another_kind_do_not_count():
    told = [(H200, fingerprint(*"abc")), (H100, fingerprint(*"XYZ")), (H100, fingerprint(*"XYZ")), (H200, fingerprint(*"abc"))]
    assert differing_works(fingerprint(*"abc"), H200, WORKS, told) == ""
