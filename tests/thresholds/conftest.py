"""A folder of profiles."""

import pytest

from tests.thresholds.profile_texts import BASE, CHILD


@pytest.fixture
def folder(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name.replace('_', '-')}.yaml").write_text(text)
        return tmp_path

    write(base=BASE, child=CHILD)
    write.path = tmp_path
    return write
