"""One rank of two that train on files with DDP and FSDP on gloo, and each alone; prints it as JSON. Started by test_data_files.py."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from gpu_acceptance.measure.train.data import Batch, Feed
from gpu_acceptance.measure.train.data_files import feed_of
from gpu_acceptance.measure.train.shapes import Decoder, ResNet, Workload

CPU = torch.device("cpu")
GPT2 = Workload("gpt2", Decoder("gpt2", num_layers=1, width=64, num_heads=2, vocabulary=400, sequence=9), 3)
RESNET = Workload("resnet", ResNet(18, 32, 4), 2)


def noting(feed: Feed, seen: list[Batch]) -> Feed:
    """A training that keeps everything that was trained."""

    def batches(workload: Workload, rank: int, device: torch.device) -> Iterator[Batch]:
        for batch in feed.batches(workload, rank, device):
            seen.append(batch)
            yield batch

    return replace(feed, batches=batches)


def trained(folder: Path) -> dict[str, object]:
    # Not at the top: each worker imports this script, and transformers take seconds.
    from gpu_acceptance.measure.train import throughput
    from gpu_acceptance.measure.train.models import Sharding
    from gpu_acceptance.measure.train.throughput import Times

    times = Times(warmup_s=0.0, block_s=0.0, num_blocks=2, min_iterations=2)
    tokens: list[Batch] = []
    images: list[Batch] = []
    feeds = [noting(feed_of(folder, one, num_workers=1, world_size=2), seen) for one, seen in ((GPT2, tokens), (RESNET, images))]
    how = {"device": CPU, "compiled": False, "times": times}
    by_ddp = [throughput.measure_ddp(one, feed=feed, **how) for one, feed in zip((GPT2, RESNET), feeds, strict=True)]
    num_trained = len(tokens)
    alone, _ = throughput.measure_alone(GPT2, rank=dist.get_rank(), agree=int, feed=feeds[0], **how)
    num_seen = len(tokens)
    by_fsdp = throughput.measure_fsdp(GPT2, Sharding(init_device_mesh("cpu", (2,))), feed=feeds[0], **how)
    return {
        "data": [*(found.trained.data for found in by_ddp), alone.data, by_fsdp.trained.data],
        "num_steps": [len(found.trained.losses) for found in by_ddp],
        "digests": [found.digest for found in by_ddp],
        "waits": by_ddp[0].data_wait_fraction,
        "inputs": [inputs.tolist() for inputs, _ in tokens[:num_trained]],
        "targets": [targets.tolist() for _, targets in tokens[:num_trained]],
        "alone": [inputs.tolist() for inputs, _ in tokens[num_trained:num_seen]],
        "sharded": [inputs.tolist() for inputs, _ in tokens[num_seen:]],
        "images": [[list(one.shape), str(one.dtype), one.is_contiguous(memory_format=torch.channels_last)] for one, _ in images],
        "colours": [one.float().mean(dim=(2, 3)).tolist() for one, _ in images],
        "classes": [classes.tolist() for _, classes in images],
    }


def broken(folder: Path) -> str:
    """Return a rank's error for a file that a worker cannot decode."""
    try:
        list(zip(range(20), feed_of(folder, RESNET, 1, 1).batches(RESNET, 0, CPU), strict=False))
    except ValueError as error:
        return str(error)
    return ""


def main(rank: int, store_file: str, folder: str) -> None:
    dist.init_process_group("gloo", store=dist.FileStore(store_file, 2), rank=rank, world_size=2)
    print(json.dumps({**trained(Path(folder)), "broken": broken(Path(folder) / "broken") if rank else ""}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
