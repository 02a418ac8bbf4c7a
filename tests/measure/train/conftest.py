"""What two real ranks found when they trained; they are started once for all tests."""

import pytest
from gloo_ranks import answers_of


@pytest.fixture(scope="package")
def answers(tmp_path_factory):
    return answers_of("train/training_ranks.py", 2, tmp_path_factory.mktemp("ranks"))
