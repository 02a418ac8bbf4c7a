import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_checkpoints import write_header, write_tensors
from safetensors.torch import save_file

from gpu_acceptance.measure.lora import model_folder
from gpu_acceptance.measure.lora.model_folder import CheckpointError, read_header


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def problem(path):
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def test_what_the_library_writes_is_read(path):
    dtypes = ["bfloat16", "float16", "float32", "float64", "int64", "int32", "uint8", "bool", "float8_e4m3fn"]
    tensors = {dtype: torch.zeros(number, 3).to(getattr(torch, dtype)) for number, dtype in enumerate(dtypes)}
    save_file(tensors, path, metadata={"format": "pt"})
    found, header = read_header(path)
    sizes = {name: (one.num_elements, one.end - one.begin) for name, one in found.items()}
    assert sizes == {name: (tensor.numel(), tensor.nbytes) for name, tensor in tensors.items()}
    assert path.read_bytes()[8 : 8 + len(header)] == header


def test_a_file_that_was_cut_off_anywhere(path):
    write_tensors(path, {"a": ("BF16", [4, 6])})
    whole = path.read_bytes()
    header_end = len(whole) - 48
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size < 8:
            said = f"{size} bytes, and no length of a header of safetensors at its beginning"
        elif size < header_end:
            said = f"{size} bytes, and its header alone has {header_end - 8}: it was not copied whole"
        else:
            said = f"{size} bytes, and its header promises {len(whole)}: it was not copied whole"
        assert problem(path) == said


def test_a_file_that_is_too_long(path):
    write_tensors(path, {"a": ("BF16", [500])})
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b"\0")
    assert problem(path) == f"{size + 1:,} bytes, and its header promises {size:,}: it was not copied whole"


@pytest.mark.parametrize("more", ["", "ext-0-foo sha256:11\n"])
def test_a_pointer_of_git_lfs(path, more):
    path.write_text(f"version https://git-lfs.github.com/spec/v1\n{more}oid sha256:{'4d' * 32}\nsize 988097824\n")
    size = path.stat().st_size
    assert problem(path) == f"{size} bytes, a pointer of git-lfs to 988,097,824: `git lfs pull` brings the file itself"


def test_a_length_that_none_has(path, monkeypatch):
    said = " bytes, and no length of a header of safetensors at its beginning"
    path.write_bytes(b"PK\3\4" + b"\1" * 100)
    assert problem(path) == f"104{said}"
    monkeypatch.setattr(model_folder, "MOST_HEADER_BYTES", 50)
    write_tensors(path, {"a": ("BF16", [500])})
    assert problem(path).endswith(said)


ENTRY = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
HEADERS = {
    "list": [],
    "text": {"a": "x"},
    "no dtype": {"a": {"shape": [2], "data_offsets": [0, 4]}},
    "dtype": {"a": {**ENTRY, "dtype": "F3"}},
    "list as dtype": {"a": {**ENTRY, "dtype": ["BF16"]}},
    "negative": {"a": {**ENTRY, "shape": [-2], "data_offsets": [4, 0]}},
    "float": {"a": {**ENTRY, "shape": [2.0]}},
    "bool": {"a": {**ENTRY, "shape": [2, True]}},
    "too many dimensions": {"a": {**ENTRY, "shape": [1] * 17, "data_offsets": [0, 2]}},
    "other size": {"a": {**ENTRY, "shape": [3]}},
    "three offsets": {"a": {**ENTRY, "data_offsets": [0, 2, 4]}},
    "huge": {"a": {**ENTRY, "shape": [2**63], "data_offsets": [0, 2**64]}},
    "gap": {"a": ENTRY, "b": {**ENTRY, "data_offsets": [6, 10]}},
    "overlap": {"a": ENTRY, "b": {**ENTRY, "data_offsets": [2, 6]}},
    "late": {"a": {**ENTRY, "data_offsets": [2, 6]}},
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_header_that_somebody_made_up(path, header):
    write_header(path, header, 4)
    assert problem(path) == "no header of safetensors: a tensor in it has no type, shape and place that fit"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"{", "column 2: Expecting property name enclosed in double quotes"),
        (b'{"a": {}, "a": {}}', "key 'a' is given twice"),
        (b'{"a\xff": {}}', "not UTF-8: byte 4 is 0xff"),
        (b"[" * 5000, "nested deeper than 64 levels"),
    ],
)
def test_a_header_that_is_no_json(path, header, said):
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert problem(path) == f"no header of safetensors: {said}"


VALUES = st.one_of(
    st.none(), st.integers(), st.sampled_from(["BF16", "F32", "", "x"]), st.lists(st.integers(-1, 9), max_size=3), st.floats()
)


@given(st.dictionaries(st.text(max_size=2), st.dictionaries(st.sampled_from([*ENTRY, "x"]), VALUES)))
def test_no_header_raises_anything_else(tmp_path_factory, header):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    write_header(path, header, 0)
    try:
        read_header(path)
    except CheckpointError:
        return


@given(st.binary())
def test_no_bytes_raise_anything_else(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_header(path)
