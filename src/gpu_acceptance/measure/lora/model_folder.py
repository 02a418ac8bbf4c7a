"""Checks of a pretrained model's folder without loading it, so that a mistake is reported before any GPU is used."""

import ast
import hashlib
import importlib.util
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_acceptance.base.strict_json import StrictJsonError, parse, text_of
from gpu_acceptance.measure.lora.template import Template, TemplateError
from gpu_acceptance.measure.train.shapes import PROJECTIONS

MOST_HEADER_BYTES = 100_000_000  # the limit of the library
_LENGTH_BYTES = 8
_MOST_DIMENSIONS = 16
_METADATA = "__metadata__"
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64"), 8),
}
_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\s(?:.*\s)?size (\d{1,18})\s", re.DOTALL)
MOST_BYTES = 2**27  # a large model's index has some MB, and tokenizer.json 10 to 40
WANTED = "a checkpoint in Hugging Face format, as save_pretrained writes it"
TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
_SHARD = re.compile(r"[\w.-]{1,200}\.safetensors")
_QUANTISED = ("quantization_config", "compression_config")
_MULTIMODAL = ("text_config", "vision_config", "audio_config", "thinker_config", "llm_config")
_FLOATS = ("F64", "F32", "F16", "BF16")


class CheckpointError(ValueError):
    """A checkpoint that cannot be fine-tuned here: names the file, its fault, and what is allowed."""


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes after the header
    end: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> tuple[dict[str, Tensor], bytes]:
    """Return the tensors by name, and the header itself. Raises CheckpointError, OSError."""
    with path.open("rb") as file:
        size, start = path.stat().st_size, file.read(200)
        if pointer := _LFS.match(start):
            promised = f"{int(pointer[1]):,}: `git lfs pull` brings the file itself"
            raise CheckpointError(f"{path}: {size:,} bytes, a pointer of git-lfs to {promised}")
        length = int.from_bytes(start[:_LENGTH_BYTES], "little")
        if size < _LENGTH_BYTES or length > MOST_HEADER_BYTES:
            raise CheckpointError(f"{path}: {size:,} bytes, and no length of a header of safetensors at its beginning")
        file.seek(_LENGTH_BYTES)
        header = file.read(length)
    if len(header) < length:
        raise CheckpointError(f"{path}: {size:,} bytes, and its header alone has {length:,}: it was not copied whole")
    try:
        told = parse(text_of(header))
        tensors = {name: _tensor(entry) for name, entry in told.items() if name != _METADATA}
        ends = sorted((tensor.begin, tensor.end) for tensor in tensors.values())
        if any(begin != end for (_, end), (begin, _) in pairwise([(0, 0), *ends])):  # all entries are contiguous
            raise ValueError(ends)
    except StrictJsonError as error:
        raise CheckpointError(f"{path}: no header of safetensors: {error}") from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise CheckpointError(f"{path}: no header of safetensors: a tensor in it has no type, shape and place that fit") from None
    needed = _LENGTH_BYTES + length + max((end for _, end in ends), default=0)
    if size != needed:
        raise CheckpointError(f"{path}: {size:,} bytes, and its header promises {needed:,}: it was not copied whole")
    return tensors, header


def _tensor(told: dict[str, Any]) -> Tensor:
    """Parse one entry. A wrong one raises any error."""
    (begin, end), shape = told["data_offsets"], told["shape"]
    if len(shape) > _MOST_DIMENSIONS or not all(type(number) is int and 0 <= number < 2**63 for number in (begin, end, *shape)):
        raise ValueError(told)
    tensor = Tensor(told["dtype"], tuple(shape), begin, end)
    if end - begin != tensor.num_elements * _ITEM_BYTES[tensor.dtype]:
        raise ValueError(told)
    return tensor


class Reader:
    """Reads small files of one folder whole, and updates a hash of all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digest = hashlib.sha256()

    def has(self, name: str) -> bool:
        """Return True if the name exists. A broken link counts: no other file may replace it."""
        return os.path.lexists(self.folder / name)

    def content(self, name: str) -> bytes:
        """Read a file. Raises OSError, CheckpointError."""
        path = self.folder / name
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:  # opening a pipe would never end
            raise CheckpointError(f"{path}: not a file of at most {MOST_BYTES:,} bytes; wanted: {WANTED}")
        content = path.read_bytes()
        self.note(name, content)
        return content

    def text(self, name: str) -> str:
        try:
            return text_of(self.content(name))
        except StrictJsonError as error:
            raise CheckpointError(f"{self.folder / name}: {error}") from None

    def object(self, name: str) -> dict[str, Any]:
        """Read a file that is one JSON object. Raises OSError, CheckpointError."""
        try:
            told = parse(self.text(name), is_finite=False)  # time_step_limit of Bamba and Falcon-H1 ends at infinity
        except StrictJsonError as error:
            raise CheckpointError(f"{self.folder / name}: {error}; was it copied whole?") from None
        if not isinstance(told, dict):
            raise CheckpointError(f"{self.folder / name}: no object; wanted: {WANTED}")
        if "auto_map" in told:
            raise CheckpointError(f"{self.folder / name}: auto_map: it asks for its own code, which is never run here; wanted: {WANTED}")
        return told

    def note(self, name: str, content: bytes) -> None:
        self.digest.update(f"{name} {len(content)}\n".encode() + content)


def shown(value: object) -> str:
    """Return a value from a file for a message: on one line, escaped, short."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def look_at_tokenizer(seen: Reader) -> Template:
    """Return the chat template. Raises CheckpointError for a folder without a fast tokenizer or without a template, and OSError."""
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if not seen.has(name):
            raise CheckpointError(f"{seen.folder}: no {name}: wanted: the files of a fast tokenizer, as its save_pretrained writes them")
    content = seen.content(TOKENIZER).strip()
    if not (content.startswith(b"{") and content.endswith(b"}")):  # its vocabulary is not parsed here
        raise CheckpointError(f"{seen.folder / TOKENIZER}: no object in JSON from end to end; was it copied whole?")
    config = seen.object(TOKENIZER_CONFIG)
    templates = _templates(seen, config.get("chat_template"))
    template = templates.get("tool_use", templates.get("default"))  # as `get_chat_template` of transformers chooses where there are tools
    if template is None:
        raise CheckpointError(f"{seen.folder}: no chat template: neither {TEMPLATE}, nor chat_template in {TOKENIZER_CONFIG}")
    try:
        return Template(template, _special_tokens(config))
    except TemplateError as error:
        raise CheckpointError(f"{seen.folder}: its chat template {error}; wanted: one that writes a dialogue in order") from None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that a template may name, as `special_tokens_map` of transformers has them."""
    told = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items() if name.endswith("_token")}
    return {name: value for name, value in told.items() if isinstance(value, str)}


def _templates(seen: Reader, told: object) -> dict[str, str]:
    """Return templates by name; files come before those in tokenizer_config.json, as in transformers."""
    more = sorted((seen.folder / MORE_TEMPLATES).glob("*.jinja"))
    files = {path.stem: f"{MORE_TEMPLATES}/{path.name}" for path in more} | ({"default": TEMPLATE} if seen.has(TEMPLATE) else {})
    if files:
        return {name: seen.text(file) for name, file in files.items()}
    listed = told if isinstance(told, list) else [{"name": "default", "template": told}]
    pairs = [(one.get("name"), one.get("template")) for one in listed if isinstance(one, dict)]
    return {name: template for name, template in pairs if isinstance(name, str) and isinstance(template, str)}


@dataclass(frozen=True)
class Checkpoint:
    """Facts of a checkpoint, from the files of its folder."""

    folder: Path
    architecture: str
    num_parameters: int
    num_bytes: int  # of weights, in the files
    dtypes: tuple[str, ...]  # of the parameters, most frequent first
    longest: int  # tokens of the longest sequence
    vocabulary: int
    num_ends: int  # rows and columns of all matrices that get adapters; adapters of rank r have r times as many parameters
    template: Template
    fingerprint: str  # of all that was read: equal on two nodes if everything except the weights themselves is equal

    def __str__(self) -> str:
        size = f"{self.num_parameters:,} parameters, {self.num_bytes:,} bytes in {' and '.join(self.dtypes)}"
        return f"{self.architecture} ({size}, sequences to {self.longest:,} tokens)"


def look_at(folder: Path) -> Checkpoint:
    """Read the folder. Raises CheckpointError for any fault that otherwise would appear only in loading or training."""
    seen = Reader(folder)
    try:
        config = _config(seen)
        tensors = _weights(seen)
        template = look_at_tokenizer(seen)
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read: {error.strerror}; wanted on every node: {WANTED}") from None
    counts: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.dtype in _FLOATS:
            counts[tensor.dtype] += tensor.num_elements
    if not counts:
        raise CheckpointError(f"{folder}: no weights in bf16, fp16 or fp32; wanted: {WANTED}")
    longest = config.get("max_position_embeddings", config.get("n_positions"))
    return Checkpoint(
        folder=folder,
        architecture=config["architectures"][0],
        num_parameters=counts.total(),
        num_bytes=sum(tensor.end - tensor.begin for tensor in tensors.values()),
        dtypes=tuple(dtype for dtype, _ in counts.most_common()),
        longest=_positive(longest, f"{folder / CONFIG}: max_position_embeddings", "no longest sequence"),
        vocabulary=_positive(config.get("vocab_size"), f"{folder / CONFIG}: vocab_size", "no number of tokens"),
        num_ends=_ends(seen, tensors),
        template=template,
        fingerprint=seen.digest.hexdigest(),
    )


def _config(seen: Reader) -> dict[str, Any]:
    """Read the config. Raises CheckpointError for a model_type or architectures that transformers does not know."""
    if not seen.has(CONFIG):
        raise CheckpointError(f"{seen.folder}: no {CONFIG}; wanted on every node: {WANTED} (in the cache of a hub: a folder in snapshots)")
    config, path = seen.object(CONFIG), seen.folder / CONFIG
    if key := next((key for key in _QUANTISED if config.get(key) is not None), None):
        raise CheckpointError(f"{path}: {key}: its weights are quantised; wanted: weights in bf16, fp16 or fp32")
    if key := next((key for key in _MULTIMODAL if isinstance(config.get(key), dict)), None):
        named = f"model_type {shown(config.get('model_type'))}"
        raise CheckpointError(f"{path}: {key}: {named} is a multimodal model; wanted: a causal language model of text alone")
    model_type, architectures = config.get("model_type"), config.get("architectures")
    known = _known_architectures().get(model_type) if isinstance(model_type, str) else None
    if known is None or architectures != [known]:
        named = f"model_type {shown(model_type)}, architectures {shown(architectures)}"
        raise CheckpointError(f"{path}: {named}: no causal language model of the transformers installed here")
    return config


def _known_architectures() -> dict[str, str]:
    """Return the architecture of each model_type: a table of transformers, read without importing it, which takes seconds and torch."""
    spec = importlib.util.find_spec("transformers")
    assert spec
    assert spec.submodule_search_locations
    table = Path(spec.submodule_search_locations[0], "models", "auto", "modeling_auto.py")
    for node in ast.parse(table.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _TABLE and isinstance(node.value, ast.Call):
            return dict(ast.literal_eval(node.value.args[0]))
    raise CheckpointError(f"{table}: no {_TABLE}: the models of this transformers cannot be listed; use another version of it")


def _positive(number: Any, where: str, problem: str) -> int:
    if type(number) is not int or number < 1:
        raise CheckpointError(f"{where} {shown(number)}: {problem}")
    return number


def _ends(seen: Reader, tensors: Mapping[str, Tensor]) -> int:
    """Return rows and columns of all matrices NAME.weight that get adapters."""
    found = dict.fromkeys(PROJECTIONS, 0)
    for name, tensor in tensors.items():
        *_, projection, kind = ["", *name.split(".")]
        if kind == "weight" and projection in found and len(tensor.shape) == 2:
            found[projection] += sum(tensor.shape)
    if missing := [name for name, number in found.items() if not number]:
        wanted = ", ".join(PROJECTIONS)
        raise CheckpointError(f"{seen.folder}: no layers named {' and '.join(missing)}; adapters are put on {wanted}")
    return sum(found.values())


def _weights(seen: Reader) -> dict[str, Tensor]:
    """Return all tensors of all files, by name."""
    if seen.has(WEIGHTS):
        return _file(seen, WEIGHTS)
    if not seen.has(INDEX):
        pickled = next((path.name for glob in _PICKLED for path in sorted(seen.folder.glob(glob))), None)
        if pickled is None:
            raise CheckpointError(f"{seen.folder}: neither {WEIGHTS} nor {INDEX}; wanted on every node: {WANTED}")
        convert = "convert them on a trusted host: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
        found = f"{shown(pickled)} and no {WEIGHTS}"
        raise CheckpointError(f"{seen.folder}: {found}: pickled weights are never opened here; {convert}")
    places = seen.object(INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) and _SHARD.fullmatch(file) for file in places.values()):
        raise CheckpointError(f"{seen.folder / INDEX}: no weight_map of files NAME.safetensors in this folder; was it copied whole?")
    files = {file: _file(seen, file) for file in sorted(set(places.values()))}
    missing = next((name for name, file in places.items() if name not in files[file]), None)
    if missing is not None:
        raise CheckpointError(f"{seen.folder / places[missing]}: lacks {shown(missing)}, which {INDEX} promises in it")
    return {name: tensor for tensors in files.values() for name, tensor in tensors.items()}


def _file(seen: Reader, name: str) -> dict[str, Tensor]:
    path = seen.folder / name
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path}: not a file; wanted: {WANTED}")
    tensors, header = read_header(path)
    seen.note(name, header)
    return tensors
