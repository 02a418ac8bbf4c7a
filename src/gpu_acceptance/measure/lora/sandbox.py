"""The environment in which a chat template runs: nothing but text comes out of it, after a bounded number of steps.

A step is a block that is entered, an operation, or the work on `_UNIT` characters. They are counted and not timed, so that all ranks drop
the same dialogues. An operation is charged before it is done with the product of its two largest operands: none makes more of them.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, cast

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_STEPS = 2**22  # of one dialogue: some seconds, and about 400 messages of which half are answers
MOST_FILE_STEPS = 2**28  # of all dialogues of a file: about ten minutes
TRIAL_STEPS = 2**18  # of one that is made to try a template, which takes some hundreds
_UNIT, _METHOD_UNIT = 256, 4096  # methods of texts run in C
_MOST_CHARS = 2**29  # of what one operation makes
_PLACE = 64  # the size of a place in a list, in characters
_NUMBER = 8
_NOT_REPEATABLE = {"random", "lipsum"}  # ranks would train on different texts
_COUNTED = "counted"  # a filter
_WIDTH = re.compile(r"\d{5,}|\*")  # in a format
_FORMATS = {"format", "format_map"}


class RefusedError(JinjaError):
    """The words of a template that refuses a dialogue."""


class TooLongError(JinjaError):
    """A template that takes too many steps."""


class _Counting(CodeGenerator):
    """Writes code that counts each block which it enters, and weighs what no method of an environment sees. Names: of the base class."""

    def blockvisit(self, nodes_: Iterable[nodes.Node], frame: Frame) -> None:
        block = list(nodes_)
        num_chars = sum(len(data.data) for node in block for data in node.find_all(nodes.TemplateData))
        self.writeline(f"environment.spend({1 + num_chars // _UNIT})")
        super().blockvisit(block, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined((")
        for one in node.nodes:
            self.visit(one, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        self.write("(")
        self._weighed(node.expr, frame)
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            self._weighed(operand.expr, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self._weighed(node.node, frame, "measured")
        self.write("[")
        self.visit(node.arg, frame)
        self.write("]")

    def _weighed(self, node: nodes.Node, frame: Frame, method: str = "weighed") -> None:
        self.write(f"environment.{method}(")
        self.visit(node, frame)
        self.write(")")


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles and runs templates, in as many steps as `begin` allows. Raises TooLongError."""

    code_generator_class = _Counting
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.num_steps = 0  # of all that ended
        self._most, self._left = MOST_STEPS, MOST_STEPS
        self.finalize = self.weighed
        self.filters |= {"tojson": _to_json, _COUNTED: lambda value: value, "sum": _sum}
        self.filters = {name: self._counted(function) for name, function in self.filters.items() if name not in _NOT_REPEATABLE}
        self.tests = {name: self._counted(function) for name, function in cast(dict[str, Callable[..., Any]], self.tests).items()}
        self.globals = {name: found for name, found in self.globals.items() if name not in _NOT_REPEATABLE} | {"raise_exception": _refuse}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            if loop.test is not None:  # it runs also where the block does not
                loop.test = nodes.Filter(loop.test, _COUNTED, [], [], None, None, lineno=loop.lineno)
        return tree

    def begin(self, most_steps: int) -> None:
        self.num_steps += self._most - self._left
        self._most, self._left = most_steps, most_steps

    def spend(self, num_steps: int) -> None:
        self._left -= num_steps
        if self._left < 0:
            raise TooLongError(f"more than {self._most:,} steps")

    def weighed(self, value: Any) -> Any:
        """Return the value, and charge its whole size."""
        self.spend(1 + self._size(value) // _UNIT)
        return value

    def measured(self, value: Any) -> Any:
        """Return the value, and charge its length, as for a copy of its places."""
        self.spend(1 + self._length(value) // _UNIT)
        return value

    def joined(self, parts: Sequence[Any]) -> str:
        return str_join(self.weighed(parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "*" and not (isinstance(left, int) and isinstance(right, int))):
            self._charge([self._size(left), self._amount(right)])
            self._charge([self._amount(left), self._size(right)] if operator == "*" else [])
        else:
            self._charge([self._size(left), self._size(right) if operator == "*" else 1])
            self.weighed(right)
        if operator == "%" and isinstance(left, str):
            self._refuse_widths(left)
        return self.measured(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as the base class has it
        if isinstance(__obj, Macro | LoopContext | type):  # their blocks are counted
            __self.spend(1)
            return super().call(__context, __obj, *args, **kwargs)
        owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # the base class wraps `format`
        own, unit = __self._length(owner), _UNIT
        if isinstance(owner, str | bytes):
            unit = _METHOD_UNIT
            if getattr(__obj, "__name__", "") in _FORMATS:
                __self._refuse_widths(str(owner))
        __self._charge([own, *map(__self._amount, [*args, *kwargs.values()])], unit)
        return __self.measured(super().call(__context, __obj, *args, **kwargs))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        num_passed = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            value, *others = [*args[num_passed:], *kwargs.values()]
            self._charge([self._size(value), *map(self._amount, others)])
            if function.__name__ == "do_format":
                self._refuse_widths(str(value))
            return self.measured(function(*args, **kwargs))

        return run

    def _length(self, value: Any) -> int:
        if isinstance(value, str | bytes):
            return len(value)
        return _PLACE * len(value) if isinstance(value, list | tuple | range | dict) else 1

    def _charge(self, sizes: Sequence[int], unit: int = _UNIT) -> None:
        *_, second, largest = sorted([1, 1, *sizes])
        self.spend(1 + largest * second // unit if largest * second <= _MOST_CHARS else self._most + 1)

    def _amount(self, value: Any) -> int:
        """Return the size of an operand that may be a width or a number of times."""
        return _NUMBER * abs(value) if isinstance(value, int) else self._size(value)

    def _size(self, value: Any) -> int:
        """Return the number of characters in a value, about, with all that it holds; no more than there are steps for."""
        if isinstance(value, str):
            return len(value)
        size, waiting, most = 0, [value], self._left * _UNIT
        while waiting and size <= most:
            one = waiting.pop()
            if isinstance(one, str | bytes):
                size += len(one)
            elif isinstance(one, int):
                size += _NUMBER + one.bit_length() // _NUMBER
            elif isinstance(one, list | tuple | range | Mapping):
                size += _PLACE * (1 + len(one))
                waiting += [] if isinstance(one, range) else [*one, *one.values()] if isinstance(one, Mapping) else one
            else:
                size += _NUMBER
        return size

    def _refuse_widths(self, text: str) -> None:
        for width in _WIDTH.findall(text):
            self.spend(self._most + 1 if width == "*" else _NUMBER * int(width[:18]) // _UNIT)


class _Generation(Extension):
    """Marks of the assistant's part, which are not needed here: `{% generation %}...{% endgeneration %}`."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _sum(values: Iterable[Any], attribute: str | None = None, start: float = 0) -> Any:
    """Sum numbers; lists would be copied once for each."""
    if not isinstance(start, int | float):
        raise TypeError("only numbers have a sum")
    return sum(values if attribute is None else (value[attribute] for value in values), start)


def _refuse(words: object) -> NoReturn:
    raise RefusedError(str(words))
