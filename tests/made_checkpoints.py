"""A checkpoint as save_pretrained writes it, but for its weights, which no model has: for tests of what looks at the files alone."""

import json
from pathlib import Path

TEMPLATE = """\
{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}"""
CONFIG = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 512, "vocab_size": 300}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LAYER = {f"model.layers.0.{name}.weight": ("BF16", [2, 3]) for name in PROJECTIONS}


def make_checkpoint(folder: Path) -> Path:
    """One layer of seven matrices [2, 3] in BF16, one of 2 parameters in F32, and a buffer of one integer, in one file."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "tokenizer.json", {"version": "1.0"})
    write_json(folder / "tokenizer_config.json", {})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write_tensors(folder / "model.safetensors", {**LAYER, "b": ("F32", [2]), "c": ("I64", [])})
    return folder


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def write_tensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """All of them 0."""
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        num_bytes = {"BF16": 2, "F32": 4, "I64": 8}[dtype]
        for size in shape:
            num_bytes *= size
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    write_header(path, {"__metadata__": {"format": "pt"}, **entries}, end)


def write_header(path: Path, header: object, num_bytes: int) -> None:
    """A header, whatever it says, and so many bytes of 0 behind it."""
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(num_bytes))
