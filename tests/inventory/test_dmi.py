"""The firmware's words: as they are, and what only root may read is not permitted, never empty."""

import shutil
import tempfile
from pathlib import Path

import pytest
from host_root import DMI, as_nobody, fill, x86_node

from gpu_acceptance.inventory import system
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.system import Dmi

FOLDER = "sys/class/dmi/id"


@pytest.fixture
def open_folder():
    """tmp_path is for its owner alone."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_server(tmp_path):
    assert system.read_dmi(x86_node(tmp_path)) == Dmi(**DMI)


def test_a_serial_that_only_root_may_read(open_folder):
    fill(open_folder, {f"{FOLDER}/{name}": value for name, value in DMI.items()})
    serial = open_folder / FOLDER / "product_serial"
    serial.chmod(0o400 if serial.stat().st_uid == 0 else 0)
    with as_nobody():
        found = system.read_dmi(open_folder)
    assert found.product_serial == Missing(Why.NOT_PERMITTED, str(serial))
    assert found.chassis_serial == DMI["chassis_serial"]


def test_what_the_vendor_left_blank_is_not_there(tmp_path):
    fill(tmp_path, {f"{FOLDER}/board_name": "  \n", f"{FOLDER}/sys_vendor": "To be filled by O.E.M.\n"})
    found = system.read_dmi(tmp_path)
    assert found.board_name == Missing(Why.NOT_THERE, f"{tmp_path / FOLDER / 'board_name'} is blank")
    assert found.sys_vendor == "To be filled by O.E.M."


def test_a_machine_without_such_firmware(tmp_path):
    assert system.read_dmi(tmp_path).bios_date == Missing(Why.NOT_THERE, str(tmp_path / FOLDER / "bios_date"))


def test_control_characters_are_no_name(tmp_path):
    fill(tmp_path, {f"{FOLDER}/product_name": "\x1b[2JDGX\n"})
    assert system.read_dmi(tmp_path).product_name.missing is Why.UNREADABLE
