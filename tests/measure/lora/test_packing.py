"""Dialogues packed into sequences, and the weights that make a step's mean that of all its tokens."""

from itertools import islice

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from gpu_acceptance.measure.lora.calls import Dialogue
from gpu_acceptance.measure.lora.chat import TokenLoss
from gpu_acceptance.measure.lora.packing import IGNORED, Fitting, Packed, TemplateError, Tokens, batches, pack, shuffled, steps
from gpu_acceptance.measure.lora.samples import Share

DIALOGUES = [Tokens(tuple(range(1, 1 + size)), (False,) + (True,) * (size - 1), size - 1) for size in (4, 3, 5, 6, 2)]


class OneFor:
    """In the place of a Scribe: dialogues by their line."""

    @staticmethod
    def tokens(dialogue):
        return DIALOGUES[dialogue.line]


def test_as_many_as_fit_in_their_order():
    packed = list(pack(DIALOGUES, 8))
    assert [one.ids for one in packed] == [[1, 2, 3, 4, 1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 1, 2]]
    assert packed[0].positions == [0, 1, 2, 3, 0, 1, 2]
    assert packed[0].targets == [2, 3, 4, IGNORED, 2, 3, IGNORED]
    assert [one.num_said for one in packed] == [5, 4, 6]


def test_what_fills_a_sequence_up_is_learned_by_nobody():
    inputs, targets = next(pack(DIALOGUES, 8)).filled(10, 99)
    assert inputs.tolist() == [[1, 2, 3, 4, 1, 2, 3, 99, 99, 99], [0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
    assert targets[7:].tolist() == [IGNORED] * 3


def test_those_that_do_not_fit_are_counted_and_none_that_fits_is_an_error():
    talks = [Dialogue((), (), line) for line in range(5)]
    fitting = Fitting(OneFor(), 4)
    assert [len(one.ids) for one in fitting.of(talks, range(5))] == [4, 3, 2]
    assert (fitting.num_too_long, fitting.num_seen) == (2, 5)
    with pytest.raises(TemplateError, match=r"^none of 5 dialogues fits into 1 tokens; raise lora_model.sequence$"):
        next(Fitting(OneFor(), 1).of(talks, shuffled(5)))


def test_each_time_around_all_are_there_in_another_order():
    drawn = list(islice(shuffled(50), 100))
    assert sorted(drawn[:50]) == sorted(drawn[50:]) == list(range(50))
    assert drawn[:50] != drawn[50:]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_the_mean_over_ranks_is_that_over_all_tokens_of_a_step(world_size):
    parts = batches(list(pack(DIALOGUES * 2, 8)), 1, 8, 0)[:6]
    sums = [float(targets[targets != IGNORED].sum()) for _, targets in parts]
    numbers = [int((targets != IGNORED).sum()) for _, targets in parts]
    wanted = [sum(sums[:3]) / sum(numbers[:3]), sum(sums[3:]) / sum(numbers[3:])]
    found = torch.zeros(2, dtype=torch.float64)
    for rank in range(world_size):
        share = Share(3, rank, world_size)
        for step, own in enumerate(steps(parts, share)):
            loss = sum(weight * float(targets[targets != IGNORED].sum()) for weight, (_, targets) in own)
            found[step] += loss / share.divisor / world_size
    assert found.tolist() == pytest.approx(wanted)


def test_dialogues_in_one_sequence_do_not_see_each_other():
    """transformers masks by positions: the loss of all is the sum of the losses of each."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16}
    loss = TokenLoss(Qwen2ForCausalLM(Qwen2Config(vocab_size=100, initializer_range=1.0, attn_implementation="sdpa", **sizes)))

    def of(packed: Packed) -> float:
        (batch,) = batches([packed], 1, 20, 0)
        return float(loss(*batch).detach())

    together, *_ = pack(DIALOGUES, 20)
    assert of(together) == pytest.approx(sum(of(next(pack([one], 20))) for one in DIALOGUES), rel=1e-5)
    together.positions[:] = range(len(together.ids))
    assert of(together) != pytest.approx(sum(of(next(pack([one], 20))) for one in DIALOGUES), rel=1e-3)
