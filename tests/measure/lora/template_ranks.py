"""One rank: a tiny checkpoint with each template, fine-tuned as acceptance/test_lora_model.py does (see test_template_training.py)."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from chat_ranks import SHORT, figures

from tests.chat_templates import TEMPLATES, make_tiny
from tools.made_dialogues import made

SIZES = {"num_steps": 11, "sequence": 4096, "learning_rate": 0.02, "num_parts": 1, "batch_size": 1, "num_held_out": 3, "num_prompts": 1}


def of(folder: Path, names: list[str]) -> dict[str, object]:
    data = folder / "dialogues.jsonl"
    data.write_text("\n".join(json.dumps({**line, "messages": going_on(line["messages"])}) for line in made(16, seed=0)))
    found = {}
    for name in names:
        torch.manual_seed(0)
        make_tiny(folder / name, TEMPLATES[name])
        with patch.dict(SHORT, SIZES):
            found[name] = figures(folder / name, data)
    return found


def going_on(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """After an answer in words comes a second question: it moves functions, and strips thoughts."""
    thanks = [{"role": "user", "content": "Thanks"}, {"role": "assistant", "content": "Bye"}]
    return messages if "tool_calls" in messages[-1] else [*messages, *thanks]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 1), rank=int(sys.argv[1]), world_size=1)
    print(json.dumps(of(Path(sys.argv[3]), sys.argv[4:])), flush=True)
    dist.destroy_process_group()
