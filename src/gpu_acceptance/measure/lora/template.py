"""A chat template: what it writes of a dialogue, tried before any GPU is touched, and the same text that is trained.

It is compiled as transformers does it (5.23, utils/chat_template_utils.py), without importing that, which takes seconds and torch. Two
differences: a date in a prompt is always the same one, so that all ranks and all runs train on the same text; and a template that takes no
functions, or writes no calls, gets both as text, in the form of Hermes.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpu_acceptance.measure.lora.calls import Call, Dialogue, DroppedError, Form, Message, find_calls, for_template, split_thought
from gpu_acceptance.measure.lora.sandbox import MOST_FILE_STEPS, MOST_STEPS, TRIAL_STEPS, RefusedError, Sandbox, TooLongError

_TODAY = datetime(2024, 7, 26, tzinfo=UTC)  # the date that Llama 3.1 writes where it is given none
_MOST_SOURCE = 2**20  # characters of a template
_MOST_SHOWN = 120  # characters of a template's words
_NAME, _QUESTION, _ANSWER = "find_city", "Where is it?", "It is there."
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Finds a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "a name"}}, "required": ["city"]},
    },
}
_CALL = Call(_NAME, {"city": "Oslo"}, "call00000")
_LONG_CALL = replace(_CALL, id="call_Ab12Cd34Ef56Gh78Ij90Kl12")  # as many chat APIs give them
_THOUGHT_MARKS = re.compile(r"</?think>")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_OFFER = """\
You can call these functions:
<tools>
{}
</tools>
To call one, answer with its name and its arguments, once for each call:
<tool_call>
{{"name": ..., "arguments": {{...}}}}
</tool_call>

"""


class _UnwrittenError(DroppedError):
    """The template does not write a dialogue, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the chat template {why}")
        self.why = why


class TemplateError(ValueError):
    """A chat template by which no answer, or no call, could be trained."""


@dataclass(frozen=True)
class Written:
    """A text that is trained: one prompt and its answer, or several of which each continues the one before."""

    text: str
    spans: tuple[tuple[int, int], ...]  # begin and end of each answer that is learned
    num_shortened: int = 0  # answers of which the template leaves out a thought, or words beside calls


class Template:
    """Writes dialogues. `special`: the tokenizer's tokens by their names, such as bos_token. Raises TemplateError."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self._special, self._sandbox = dict(special), Sandbox()
        self._sandbox.globals["strftime_now"] = _TODAY.strftime
        if len(source) > _MOST_SOURCE:
            raise TemplateError(f"has {len(source):,} characters, more than {_MOST_SOURCE:,}")
        try:
            self._compiled = self._sandbox.from_string(source)
        except Exception as error:  # also one of Python's compiler, of the code that is made of it
            raise TemplateError(f"cannot be compiled: {_shown(error)}") from None
        self._header, self.added_end, self.shortens_ids = "", "", False
        self.is_native, self.form = self._tried()
        self.shortens_ids = self.is_native and self._wants_short_ids()

    def written(self, dialogue: Dialogue) -> list[Written]:
        """Return texts in which each learned answer has its own prompt.

        Raises DroppedError where the template refuses the dialogue, or writes an answer whose calls would not be found again.
        """
        self._sandbox.begin(MOST_STEPS)
        found: list[Written] = []
        for place in dialogue.answers:
            prompt, answer = self._cut(dialogue, place)
            read = find_calls(answer, self.form)
            if read.problem or read.calls != dialogue.messages[place].calls:
                raise _UnwrittenError("does not write an answer so that its calls can be read again")
            if self.form.end and self.form.end in answer.removesuffix(self.form.end):
                raise DroppedError("an answer that has the mark of its end in its words")
            before = found.pop() if found and prompt.startswith(found[-1].text) else Written("", ())
            num_shortened = before.num_shortened + _is_shortened(dialogue.messages[place], answer)
            found.append(Written(prompt + answer, (*before.spans, (len(prompt), len(prompt) + len(answer))), num_shortened))
        return found

    @property
    def is_spent(self) -> bool:
        """True once the dialogues written took all the steps that a file may take."""
        return self._sandbox.num_steps > MOST_FILE_STEPS

    def prompt(self, dialogue: Dialogue) -> str:
        """Return the text before the first learned answer."""
        self._sandbox.begin(MOST_STEPS)
        return self._cut(dialogue, dialogue.answers[0])[0]

    def _cut(self, dialogue: Dialogue, place: int) -> tuple[str, str]:
        """Return the text before an answer, and the answer up to its end mark."""
        answered = self._text(dialogue, place + 1, is_asked=False).rstrip() + self.added_end
        opened = self._text(dialogue, place, is_asked=True)
        if answered.startswith(opened) and len(answered) > len(opened):
            return opened, answered[len(opened) :]
        before = self._text(dialogue, place, is_asked=False)
        # Some open a thought for a model, and write none for an answer that is given.
        for asked in (before + self._header, before, before.rstrip()):
            if answered.startswith(asked) and len(answered) > len(asked):
                return asked, answered[len(asked) :]
        last = dialogue.messages[place - 1].content.strip()
        tail = opened[opened.rfind(last) :] if last in opened else ""
        if tail and (answer := answered.rpartition(tail)[2]) and tail in answered:
            return opened, answer  # Mistral's write the system's text for a prompt alone
        raise _UnwrittenError("does not write an answer after the messages before it")

    def _text(self, dialogue: Dialogue, num_messages: int, *, is_asked: bool) -> str:
        messages: Sequence[Message] = dialogue.messages[:num_messages]
        if self.shortens_ids:
            messages = list(map(_with_short_ids, messages))
        tools = list(dialogue.tools) or None
        if not self.is_native:
            messages, tools = _in_words(messages, dialogue.tools), None
        try:
            return self._compiled.render(
                messages=for_template(messages), tools=tools, documents=None, add_generation_prompt=is_asked, **self._special
            )
        except TooLongError as error:
            raise _UnwrittenError(f"takes {error} to write a dialogue") from None
        except Exception as error:  # a program from elsewhere may raise any
            raise _UnwrittenError(f"refuses it: {_shown(error)}") from None

    def _tried(self) -> tuple[bool, Form]:
        """Return True if the template itself writes functions and calls, and its form of an answer."""
        asked, problems = Message("user", _QUESTION), []
        for self.is_native in (True, False):
            self._sandbox.begin(TRIAL_STEPS)
            try:
                answered = Dialogue((_TOOL,), (asked, Message("assistant", _ANSWER)), 0)
                self._header, self.added_end = self._found_header(answered), ""
                self.added_end = self._lacking_end(self._cut(answered, 1)[1])
                self._refuse_opened()
                _, plain = self._cut(answered, 1)
                prompt, called = self._cut(Dialogue((_TOOL,), (asked, Message("assistant", "", (_CALL,))), 0), 1)
            except _UnwrittenError as error:
                problems.append(error.why)
                continue
            _, is_said, end = plain.partition(_ANSWER)
            for begin in ("", split_thought(called)[1].partition("{")[0].strip()):
                form = Form(begin, end.strip())
                if is_said and _QUESTION in prompt and _NAME in prompt and find_calls(called, form).calls == (_CALL,):
                    return self.is_native, form
            problems.append("does not write all of a question, an answer, and a call that can be read again")
        raise TemplateError(problems[-1])

    def _refuse_opened(self) -> None:
        """Raise _UnwrittenError over a template that begins the next answer after each one, which would be learned as its end."""
        asked, answered = Message("user", _QUESTION), Message("assistant", _ANSWER)
        dialogue = Dialogue((), (asked, answered, asked), 0)
        before, opened = (self._text(dialogue, 1, is_asked=is_asked) for is_asked in (False, True))
        told, goes_on = (self._text(dialogue, num, is_asked=False) for num in (2, 3))
        if before == opened and not goes_on.startswith(told.rstrip()):
            raise _UnwrittenError("begins another answer after each one; wanted: only {% if add_generation_prompt %}")

    def _lacking_end(self, plain: str) -> str:
        """Return the tokenizer's end mark where the template writes none, as those of GLM: no answer would be learned to end."""
        if not plain.endswith(_ANSWER):
            return ""
        if end := self._special.get("eos_token"):
            return end
        raise _UnwrittenError("writes no mark at the end of an answer, and tokenizer_config.json has no eos_token")

    def _found_header(self, answered: Dialogue) -> str:
        """Return what begins the answer of this dialogue, and the prompt for it as well: the mark of an assistant."""
        before, *others = (self._text(answered, num, is_asked=is_asked) for num, is_asked in ((1, False), (1, True), (2, False)))
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*others, strict=False))
        return "".join(char for char, _ in pairs).removeprefix(before) if all(one.startswith(before) for one in others) else ""

    def _wants_short_ids(self) -> bool:
        """Return True if the template refuses a call and its result for their identifiers alone: Mistral's want nine letters or digits."""
        called, returned = Message("assistant", "", (_LONG_CALL,)), Message("tool", _ANSWER, call_id=_LONG_CALL.id, name=_NAME)
        dialogue = Dialogue((_TOOL,), (Message("user", _QUESTION), called, returned, Message("assistant", _ANSWER)), 0)
        for num_messages in (2, 4):
            refusals = []
            for self.shortens_ids in (False, True):
                self._sandbox.begin(TRIAL_STEPS)
                try:
                    self._text(dialogue, num_messages, is_asked=False)
                except _UnwrittenError as error:
                    refusals.append(error.why)
            if len(refusals) == 1:
                return True
        return False


def _is_shortened(message: Message, answer: str) -> bool:
    return any(part.strip() not in answer for part in (message.thought, *_THOUGHT_MARKS.split(message.content)))


def _with_short_ids(message: Message) -> Message:
    """Return the message with identifiers of nine characters, equal ones for equal ones."""
    calls = tuple(replace(call, id=_short(call.id)) for call in message.calls)
    return replace(message, calls=calls, call_id=_short(message.call_id))


def _short(identifier: str) -> str:
    if not identifier or _SHORT_ID.fullmatch(identifier):
        return identifier
    return hashlib.sha256(identifier.encode()).hexdigest()[:9]


def _in_words(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages with functions, calls and results as text, of roles that alternate."""
    found: list[Message] = []
    offer = _OFFER.format("\n".join(map(_json, tools))) if tools else ""
    for message in messages:
        role, content = message.role, message.content
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        elif role == "user":
            content, offer = offer + content, ""
        calls = [f"<tool_call>\n{_json({'name': call.name, 'arguments': call.arguments})}\n</tool_call>" for call in message.calls]
        content = "\n".join([content, *calls] if content else calls)
        if found and found[-1].role == role == "user":
            content = f"{found.pop().content}\n{content}"
        found.append(Message(role, content, thought=message.thought))
    return found


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown(error: BaseException) -> str:
    """Return the words of a template, or of what failed in it: on one line, escaped, short."""
    words = str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"
    text = repr(words)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
