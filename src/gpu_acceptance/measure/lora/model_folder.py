"""A checkpoint as `save_pretrained` of transformers writes it, looked at before any GPU is touched: is it all there, and what is it?

No weight is read, no code of it is run, nothing is asked of a hub.
"""

import ast
import importlib.util
import re
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_acceptance.base.safetensors_header import Tensor, TornFileError, read_header
from gpu_acceptance.measure.lora.model_reader import WANTED, CheckpointError, Reader, shown
from gpu_acceptance.measure.lora.tokenizer import look_at_tokenizer
from gpu_acceptance.measure.train.shapes import PROJECTIONS

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_TABLE = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
_PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
_SHARD = re.compile(r"[\w.-]{1,200}\.safetensors")
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds, by what its files say of themselves."""

    folder: Path
    model_type: str
    architecture: str
    num_parameters: int
    num_bytes: int  # of weights, as they lie in the files
    dtypes: tuple[str, ...]  # of the parameters, the most frequent first
    longest: int  # tokens of a sequence
    vocabulary: int
    num_ends: int  # rows and columns of all matrices that get adapters: one of rank r has r times as many parameters
    fingerprint: str  # of all that was read: equal on two nodes where all but the weights themselves is

    def __str__(self) -> str:
        size = f"{self.num_parameters:,} parameters, {self.num_bytes:,} bytes in {' and '.join(self.dtypes)}"
        return f"{self.architecture} ({size}, sequences to {self.longest:,} tokens)"


def look_at(folder: Path) -> Checkpoint:
    """Raises CheckpointError over whatever would show only when it is loaded, or trained."""
    seen = Reader(folder)
    try:
        config = _config(seen)
        tensors = _weights(seen)
        look_at_tokenizer(seen)
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read: {error.strerror}; wanted on every node: {WANTED}") from None
    except TornFileError as error:
        raise CheckpointError(str(error)) from None
    parameters = [tensor for tensor in tensors.values() if tensor.dtype in _FLOATS]
    if not parameters:
        raise CheckpointError(f"{folder}: no weights in bf16, fp16 or fp32; wanted: {WANTED}")
    counts: Counter[str] = Counter()
    for tensor in parameters:
        counts[tensor.dtype] += tensor.num_elements
    return Checkpoint(
        folder=folder,
        model_type=config["model_type"],
        architecture=config["architectures"][0],
        num_parameters=counts.total(),
        num_bytes=sum(tensor.end - tensor.begin for tensor in tensors.values()),
        dtypes=tuple(dtype for dtype, _ in counts.most_common()),
        longest=_longest(seen, config),
        vocabulary=_vocabulary(seen, config),
        num_ends=_ends(seen, tensors),
        fingerprint=seen.digest.hexdigest(),
    )


def _config(seen: Reader) -> dict[str, Any]:
    """With a model_type and architectures that transformers knows."""
    if not seen.has(CONFIG):
        raise CheckpointError(f"{seen.folder}: no {CONFIG}; wanted on every node: {WANTED} (in the cache of a hub: a folder in snapshots)")
    config, path = seen.object(CONFIG), seen.folder / CONFIG
    if "quantization_config" in config:
        raise CheckpointError(f"{path}: quantization_config: its weights are quantised; wanted: weights in bf16, fp16 or fp32")
    model_type, architectures = config.get("model_type"), config.get("architectures")
    known = _known_architectures().get(model_type) if isinstance(model_type, str) else None
    if known is None or architectures != [known]:
        named = f"model_type {shown(model_type)}, architectures {shown(architectures)}"
        raise CheckpointError(f"{path}: {named}: no causal language model of the transformers installed here")
    return config


def _known_architectures() -> dict[str, str]:
    """By model_type: the table of transformers itself, read without the seconds and the torch that importing it takes."""
    spec = importlib.util.find_spec("transformers")
    assert spec
    assert spec.submodule_search_locations
    table = Path(spec.submodule_search_locations[0], "models", "auto", "modeling_auto.py")
    for node in ast.parse(table.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == _TABLE and isinstance(node.value, ast.Call):
            return dict(ast.literal_eval(node.value.args[0]))
    raise CheckpointError(f"{table}: no {_TABLE}: which models this transformers knows cannot be told; use another version of it")


def _longest(seen: Reader, config: dict[str, Any]) -> int:
    longest = config.get("max_position_embeddings", config.get("n_positions"))
    if type(longest) is not int or longest < 1:
        raise CheckpointError(f"{seen.folder / CONFIG}: max_position_embeddings {shown(longest)}: no longest sequence")
    return longest


def _vocabulary(seen: Reader, config: dict[str, Any]) -> int:
    size = config.get("vocab_size")
    if type(size) is not int or size < 1:
        raise CheckpointError(f"{seen.folder / CONFIG}: vocab_size {shown(size)}: no number of tokens")
    return size


def _ends(seen: Reader, tensors: Mapping[str, Tensor]) -> int:
    """Of the matrices NAME.weight that adapters are put on."""
    shapes = [(name.split(".")[-2:], tensor.shape) for name, tensor in tensors.items() if len(tensor.shape) == 2]
    found = dict.fromkeys(PROJECTIONS, 0)
    for ends, shape in shapes:
        if len(ends) == 2 and ends[1] == "weight" and ends[0] in found:
            found[ends[0]] += sum(shape)
    if missing := [name for name, number in found.items() if not number]:
        wanted = ", ".join(PROJECTIONS)
        raise CheckpointError(f"{seen.folder}: no layers named {' and '.join(missing)}; adapters are put on {wanted}")
    return sum(found.values())


def _weights(seen: Reader) -> dict[str, Tensor]:
    """All tensors of all files, by name."""
    if seen.has(WEIGHTS):
        return _file(seen, WEIGHTS)
    if not seen.has(INDEX):
        raise CheckpointError(_without_weights(seen.folder))
    places = seen.object(INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(file, str) and _SHARD.fullmatch(file) for file in places.values()):
        raise CheckpointError(f"{seen.folder / INDEX}: no weight_map of files NAME.safetensors in this folder; was it copied whole?")
    found = {file: _file(seen, file) for file in sorted(set(places.values()))}
    missing = next((name for name, file in places.items() if name not in found[file]), None)
    if missing is not None:
        raise CheckpointError(f"{seen.folder / places[missing]}: lacks {shown(missing)}, which {INDEX} promises in it")
    return {name: tensor for tensors in found.values() for name, tensor in tensors.items()}


def _file(seen: Reader, name: str) -> dict[str, Tensor]:
    path = seen.folder / name
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"{path}: not a file; wanted: {WANTED}")
    tensors, header = read_header(path)
    seen.note(name, header)
    return tensors


def _without_weights(folder: Path) -> str:
    pickled = next((path.name for glob in _PICKLED for path in sorted(folder.glob(glob))), None)
    if pickled is None:
        return f"{folder}: neither {WEIGHTS} nor {INDEX}; wanted on every node: {WANTED}"
    convert = "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
    return (
        f"{folder}: {shown(pickled)} and no {WEIGHTS}: pickled weights are never opened here; convert them where you trust them: {convert}"
    )
