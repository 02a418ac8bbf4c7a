"""All ranks together read each sample once, DataLoader workers start and end, and training does not wait for data."""

import pytest

from gpu_acceptance.measure.train import loader


@pytest.fixture
def judge(check, record):
    """Checks epochs over data of each size."""

    def judge_results(*results):
        for result in results:
            size = f"{result.num_samples} samples"
            for number, epoch in enumerate(result.epochs):
                where = f"{size}, epoch {number}"
                check("sampler.samples.missing", epoch.num_missing, "count", detail=where)
                check("sampler.samples.repeated", epoch.num_repeated, "count", detail=where)
                check("sampler.padding.difference", epoch.padding_difference, "count", detail=where)
            if result.epochs:
                check("sampler.epochs.same_order", result.num_same_order, "count", detail=size)
        record("sampler.samples.read", sum(epoch.num_distinct for result in results for epoch in result.epochs), "count")

    return judge_results


@pytest.mark.parametrize("last", ["padded", "dropped"])
def test_epochs(last, ranks, judge):
    """All ranks together read each sample once in an epoch, except those that the sampler adds or leaves out by definition."""
    judge(
        *(
            loader.measure_epochs(num_samples, num_workers=0, drop_last=last == "dropped", device=ranks.device)
            for num_samples in loader.sizes(ranks.world_size)
        )
    )


def test_workers(ranks, judge, parameter, check):
    """Through DataLoader workers the samples are the same; each worker starts, reads samples and ends."""
    num_samples = loader.sizes(ranks.world_size)[-1]
    result = loader.measure_epochs(num_samples, num_workers=parameter("sampler.num_workers"), drop_last=False, device=ranks.device)
    judge(result)
    for workers in result.workers:
        check("sampler.workers.missing", workers.num_missing, "count", detail=workers.fault)
        check("sampler.workers.left", workers.num_left, "count")


@pytest.mark.needs("numpy", "transformers", "compiler")
def test_step_split(train, check, record):
    """A DDP step on GPT-2 does not wait for its data; the time of each phase is reported."""
    found = train.with_loaded_data("gpt2")
    check("sampler.step.data_wait_fraction", found.data_wait_fraction, "relative")
    for phase in ("data_wait_s", "forward_s", "backward_s", "optimizer_s"):
        record(f"sampler.step.{phase}", getattr(found.phases, phase), "s")
    record("sampler.step.data", found.trained.data, "text")
    record("sampler.step.exposed_communication_s", found.exposed_s, "s")
    record("sampler.step.rate", found.trained.items_per_s, found.trained.workload.unit)
