"""`--data-dir` in a real run of shipped validations: both models train on the files, and the run may be ACCEPTED."""

import numpy as np
import pytest
from PIL import Image
from suite import plain_pytest, shipped_suite

pytestmark = pytest.mark.launcher


@pytest.fixture
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "tokens.npy", np.tile(np.arange(16, dtype=np.uint16), 100))
    for name, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (folder / "images" / name).mkdir(parents=True)
        for place in range(6):
            Image.new("RGB", (40, 30), colour).save(folder / "images" / name / f"{place}.jpg")
    return folder


def test_what_was_trained_is_in_the_record_of_a_run_that_may_be_accepted(tmp_path, data):
    suite = shipped_suite(tmp_path / "suite", "ddp")
    ended = plain_pytest(suite, f"--data-dir={data}", env={"OMP_NUM_THREADS": "1"})
    assert ended.verdict_line.startswith("ACCEPTED (cpu profile: no GPU was tested"), ended.output
    figures = {figure.metric: figure.value for row in ended.record.rows for figure in row.attempts[-1].ranks[0].figures}
    assert (figures["ddp.gpt2.data"], figures["ddp.resnet.data"]) == ("tokens.npy: 1,600 tokens", "images: 12 of 2 classes")
