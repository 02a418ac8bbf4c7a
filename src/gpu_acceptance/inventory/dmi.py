"""What the firmware says of the machine (SMBIOS): whose it is, which one, and what it was booted with."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_acceptance.inventory.answer import Answer, Missing, Why, read_value
from gpu_acceptance.inventory.parsing import one_line


@dataclass(frozen=True)
class Dmi:
    """The files of /sys/class/dmi/id, by their own names. As a rule only root may read a serial.

    What a vendor never filled in stays as it is written: `To be filled by O.E.M.`, `Not Specified`. A guest has its hypervisor's values.
    """

    sys_vendor: Answer[str]
    product_name: Answer[str]
    product_serial: Answer[str]
    chassis_serial: Answer[str]
    board_vendor: Answer[str]
    board_name: Answer[str]
    bios_version: Answer[str]
    bios_date: Answer[str]


def read(root: Path = Path("/")) -> Dmi:
    answer = partial(_answer, root / "sys/class/dmi/id")
    return Dmi(
        sys_vendor=answer("sys_vendor"),
        product_name=answer("product_name"),
        product_serial=answer("product_serial"),
        chassis_serial=answer("chassis_serial"),
        board_vendor=answer("board_vendor"),
        board_name=answer("board_name"),
        bios_version=answer("bios_version"),
        bios_date=answer("bios_date"),
    )


def _answer(folder: Path, name: str) -> Answer[str]:
    value = read_value(folder / name, lambda text: text.strip() and one_line(text))
    return Missing(Why.NOT_THERE, f"{folder / name} is blank") if value == "" else value
