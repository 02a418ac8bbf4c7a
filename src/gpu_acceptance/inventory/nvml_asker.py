"""Questions to NVML, each answered for itself: a value made plain, or why there is none."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gpu_acceptance.inventory.answer import Answer, Missing, Why

T = TypeVar("T")

_MOST_LINKS = 64  # 18 on Hopper and Blackwell; NVML_NVLINK_MAX_LINKS grew with each generation
_ONE_AT_A_TIME = threading.Lock()
_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # of nvmlValue_t, by nvmlValueType_t


@dataclass(frozen=True)
class Asker:
    """One way to put a question to NVML: what it returns, made plain, or why there is no answer."""

    pynvml: Any

    def ask(self, name: str, *arguments: object, make: Callable[[Any], T]) -> T | Missing:
        if lacking := next((one for one in arguments if isinstance(one, Missing)), None):
            return lacking  # of what is not there, nothing can be told
        function = getattr(self.pynvml, name, None)
        if function is None:
            return Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {name}")
        try:
            return make(function(*arguments))
        except self.pynvml.NVMLError as error:
            return self._why(name, error)
        except (ctypes.ArgumentError, ValueError, TypeError, AttributeError, LookupError) as error:
            return Missing(Why.UNREADABLE, f"{name}: {type(error).__name__}: {error}"[:200])

    def integer(self, name: str, *arguments: object) -> Answer[int]:
        return self.ask(name, *arguments, make=int)

    def text(self, name: str, *arguments: object) -> Answer[str]:
        return self.ask(name, *arguments, make=text)

    def flag(self, name: str, *arguments: object) -> Answer[bool]:
        return self.ask(name, *arguments, make=bool)

    def flags(self, name: str, *arguments: object) -> tuple[bool, bool] | Missing:
        """Now, and after the next reset or reboot; or two flags of another kind."""
        return self.ask(name, *arguments, make=lambda both: (bool(both[0]), bool(both[1])))

    def watts(self, name: str, *arguments: object) -> Answer[float]:
        return self.ask(name, *arguments, make=lambda milliwatts: milliwatts / 1000)

    def word(self, words: dict[int, str], name: str, *arguments: object) -> Answer[str]:
        return self.ask(name, *arguments, make=lambda value: word(words, int(value)))

    def field(self, device: object, name: str, scope: int = 0) -> Answer[int]:
        """A field value by the name of its constant, of one link where `scope` says so."""
        return self.fields(device, [(name, scope)])[0]

    def fields(self, device: object, wanted: Sequence[tuple[str, int]]) -> list[Answer[int]]:
        """Values of many fields at once, by name and scope; each answers for itself. One call costs less than one for each.

        One thread at a time: beside one that reads the traffic of NVLinks, 20 to 127 of 150 readings of their errors were "not supported"
        (H200, driver 580); none when both came here, none beside another process: tests/gpu/nvlink_race.py.
        """
        known = [(getattr(self.pynvml, name), scope) for name, scope in wanted if hasattr(self.pynvml, name)]
        with _ONE_AT_A_TIME:
            values = self.ask("nvmlDeviceGetFieldValues", device, known, make=iter) if known else iter(())
        answers: list[Answer[int]] = []
        for name, _ in wanted:
            if not hasattr(self.pynvml, name):
                answers.append(Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {name}"))
            else:
                answers.append(values if isinstance(values, Missing) else self._field(name, next(values)))
        return answers

    def _field(self, name: str, value: Any) -> Answer[int]:
        if value.nvmlReturn:
            return self._why(name, self.pynvml.NVMLError(value.nvmlReturn))
        member = _MEMBERS.get(value.valueType)
        if member is None:
            return Missing(Why.UNREADABLE, f"{name}: a value of type {value.valueType}")
        return int(getattr(value.value, member))

    def num_links(self, device: object) -> Answer[int]:
        """NVLinks of a GPU."""
        count = self.field(device, "NVML_FI_DEV_NVLINK_LINK_COUNT")
        if isinstance(count, int) and count > _MOST_LINKS:
            return Missing(Why.UNREADABLE, f"NVML_FI_DEV_NVLINK_LINK_COUNT: {count} links, more than any GPU has")
        return count

    def structure(self, type_name: str, name: str, device: object) -> Any | Missing:
        """What a function writes into a structure that carries its version."""
        make_structure = getattr(self.pynvml, type_name, None)
        if make_structure is None:
            return Missing(Why.NOT_SUPPORTED, f"this nvidia-ml-py has no {type_name}")
        structure = make_structure()
        return self.ask(name, device, ctypes.byref(structure), make=lambda _: structure)

    def _why(self, name: str, error: Exception) -> Missing:
        code = getattr(error, "value", None)
        reasons = {
            self.pynvml.NVML_ERROR_NOT_SUPPORTED: Why.NOT_SUPPORTED,
            self.pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Why.NOT_SUPPORTED,
            self.pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Why.NOT_SUPPORTED,
            self.pynvml.NVML_ERROR_NO_PERMISSION: Why.NOT_PERMITTED,
            self.pynvml.NVML_ERROR_NOT_FOUND: Why.NOT_THERE,
        }
        why = reasons.get(code, Why.UNREADABLE)
        return Missing(why, "" if why is Why.NOT_SUPPORTED else f"{name}: {error}"[:200])


def is_lacking(answer: Answer[object]) -> bool:
    """Whether NVML says that this GPU does not support it."""
    return isinstance(answer, Missing) and answer.missing is Why.NOT_SUPPORTED


def word(words: dict[int, str], value: int) -> str:
    """What a number of an enumeration stands for; one that a later NVML may bring is said to be unknown."""
    return words.get(value, f"unknown ({value})")


def text(value: str | bytes) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
