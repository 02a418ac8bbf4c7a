"""Every rank is told what is to be fine-tuned and on what, finds it sound, and has the same as the others."""

from fixtures.training import refuse_unlike
from gpu_acceptance.lora_files import look, source_of


def test_value(check, record, ranks):
    found = look(ranks.lora_model, ranks.lora_data)
    sources = ranks.gather("fine_tunes", source_of(found))
    refuse_unlike(sources, "--lora-model and --lora-data")
    record("fine_tunes.data", sources[0], "text")
    check("fine_tunes.value", len(found.read.dialogues), "GB/s")
