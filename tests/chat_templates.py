"""Chat templates that behave as those of models in use, in words of our own, and a tokenizer for them.

What is alike: where functions stand, which marks a call has, what is refused, and what is left out of earlier answers. Read for it,
2026-11: the templates of Qwen2.5, Qwen3, Qwen3-Thinking-2507, DeepSeek-R1, Llama 3.1 and 3.2, Mistral-7B-Instruct-v0.3, Mistral-Nemo,
Mistral-Small-3.2, Gemma 2 and 3, Phi-4 and Phi-4-mini, as their model cards and issues of vllm, llama.cpp and mlx-lm quote them.
"""

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tests.own_call_templates import WITH_OWN_CALLS

_QWEN_TOOLS = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == "system" %}{{ messages[0].content }}

{% endif %}Functions:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call with <tool_call>.<|im_end|>
{% elif messages[0].role == "system" %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}"""
_QWEN_CALLS = """\
{%- for call in message.tool_calls or [] %}
{{ "\\n" if content or not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
"""
_QWEN_RESULTS = """\
{%- elif message.role == "tool" %}{% if loop.previtem.role != "tool" %}<|im_start|>user{% endif %}

<tool_response>
{{ message.content }}
</tool_response>{% if loop.last or loop.nextitem.role != "tool" %}<|im_end|>
{% endif %}"""
_QWEN25 = f"""\
{_QWEN_TOOLS}
{{%- for message in messages %}}{{% set content = message.content %}}
{{%- if message.role == "user" %}}<|im_start|>user
{{{{ content }}}}<|im_end|>
{{% elif message.role == "assistant" %}}<|im_start|>assistant
{{{{ content }}}}{_QWEN_CALLS}{_QWEN_RESULTS}{{%- endif %}}{{% endfor %}}
{{%- if add_generation_prompt %}}<|im_start|>assistant
{{% endif %}}"""
_QWEN3 = f"""\
{_QWEN_TOOLS}
{{%- set ns = namespace(last=0) %}}
{{%- for message in messages %}}{{% if message.role == "user" and not message.content.startswith("<tool_response>") %}}
{{%- set ns.last = loop.index0 %}}{{% endif %}}{{% endfor %}}
{{%- for message in messages %}}{{% set content = message.content %}}
{{%- if message.role == "user" %}}<|im_start|>user
{{{{ content }}}}<|im_end|>
{{% elif message.role == "assistant" %}}<|im_start|>assistant
{{% set thought = message.reasoning_content or "" %}}
{{%- if not thought and "</think>" in content %}}
{{%- set thought = content.split("</think>")[0].split("<think>")[-1].strip("\\n") %}}
{{%- set content = content.split("</think>")[-1].lstrip("\\n") %}}{{% endif %}}
{{%- if loop.index0 > ns.last and (loop.last or thought) %}}<think>
{{{{ thought.strip("\\n") }}}}
</think>

{{% endif %}}{{{{ content }}}}{_QWEN_CALLS}{_QWEN_RESULTS}{{%- endif %}}{{% endfor %}}
{{%- if add_generation_prompt %}}<|im_start|>assistant
OPENED{{% endif %}}"""
_R1 = """\
{{ bos_token }}{% for message in messages %}
{%- if message.role == "assistant" %}[A]{{ message.content.split("</think>")[-1] }}{{ eos_token }}
{%- else %}[{{ message.role }}]{{ message.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[A]<think>
{% endif %}"""
_LLAMA = """\
{{ bos_token }}
{%- if strftime_now is defined and DATED %}{% set today = strftime_now("%d %b %Y") %}{% else %}{% set today = "26 Jul 2024" %}{% endif %}
{%- if messages[0].role == "system" %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = "" %}{% endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{ "Environment: ipython\\n" }}{% endif %}
{{- "Today: " + today + "\\n\\n" + system + "<|eot_id|>" }}
{%- if tools is not none %}
{%- if messages | length == 0 %}{{ raise_exception("functions need a first message of a user") }}{% endif %}
{{- "<|start_header_id|>user<|end_header_id|>\\n\\nFunctions:\\n" }}
{%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ "\\n\\n" }}{% endfor %}
{{- messages[0].content | trim + "<|eot_id|>" }}{% set messages = messages[1:] %}{% endif %}
{%- for message in messages %}
{%- if not (message.role == "ipython" or message.role == "tool" or "tool_calls" in message) %}
{{- "<|start_header_id|>" + message.role + "<|end_header_id|>\\n\\n" + message.content | trim + "<|eot_id|>" }}
{%- elif "tool_calls" in message %}
{%- if not message.tool_calls | length == 1 %}{{ raise_exception("only one call at once") }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}{{ "}<|eot_id|>" }}
{%- else %}{{ "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
{%- if message.content is mapping or message.content is iterable %}{{ message.content | tojson }}{% else %}{{ message.content }}{% endif %}
{{- "<|eot_id|>" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}{% endif %}"""
_MISTRAL = """\
{%- if messages[0].role == "system" %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- set users = rest | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in rest %}{% if not (message.role == "tool" or message.tool_calls is defined) %}
{%- if (message.role == "user") != (ns.index % 2 == 0) %}{{ raise_exception("user and assistant must take turns") }}{% endif %}
{%- set ns.index = ns.index + 1 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- for message in rest %}
{%- if message.role == "user" %}
{%- if tools is not none and message == users[-1] %}[AVAILABLE_TOOLS]SPACE[
{%- for tool in tools %}{{ tool | tojson }}{{ ", " if not loop.last }}{% endfor %}][/AVAILABLE_TOOLS]{% endif %}
{{- "[INST]SPACE" }}{% if loop.last and system is defined %}{{ system + "\\n\\n" }}{% endif %}{{ message.content + "[/INST]" }}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}CALLS
{%- elif message.role == "assistant" %}{{ "SPACE" + message.content | trim + eos_token }}
{%- elif message.role == "tool" %}
{%- if not message.tool_call_id is defined or message.tool_call_id | length != 9 %}
{{- raise_exception("ids have a length of 9!") }}{% endif %}
{{- '[TOOL_RESULTS]SPACE{"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception("no role but user and assistant") }}{% endif %}{% endfor %}"""
_ID = '{%- if call.id is not defined or call.id | length != 9 %}{{ raise_exception("ids have a length of 9!") }}{% endif %}'
_MISTRAL_LIST = """\
{{- "[TOOL_CALLS]SPACE[" }}{% for call in message.tool_calls %}{% set out = call.function | tojson %}{{ out[:-1] }}ID
{{- ', "id": "' + call.id + '"}' }}{{ ", " if not loop.last else "]" + eos_token }}{% endfor %}""".replace("ID\n", f"{_ID}\n")
_MISTRAL_NAMED = f"""\
{{%- for call in message.tool_calls %}}{_ID}
{{{{- "[TOOL_CALLS]" + call.function.name + "[CALL_ID]" + call.id + "[ARGS]" }}}}{{{{ call.function.arguments | tojson }}}}{{% endfor %}}
{{{{- eos_token }}}}"""
_GEMMA = """\
{{ bos_token }}{% if messages[0].role == "system" %}SYSTEM{% set rest = messages[1:] %}{% else %}
{%- set first = "" %}{% set rest = messages %}{% endif %}
{%- for message in rest %}
{%- if (message.role == "user") != (loop.index0 % 2 == 0) %}{{ raise_exception("roles must take turns: user, assistant") }}{% endif %}
{{- "<start_of_turn>" + ("model" if message.role == "assistant" else message.role) + "\\n" + (first if loop.first else "") }}
{%- if message.content is string %}{{ message.content | trim }}{% else %}{{ raise_exception("no such content") }}{% endif %}
{{- "<end_of_turn>\\n" }}{% endfor %}{% if add_generation_prompt %}{{ "<start_of_turn>model\\n" }}{% endif %}"""
_PHI4 = """\
{% for message in messages %}{% if message.role in ["system", "user", "assistant"] %}
{{- "<|im_start|>" + message.role + "<|im_sep|>" + message.content + "<|im_end|>" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant<|im_sep|>" }}{% endif %}"""
_PHI4_MINI = """\
{% for message in messages %}{% if message.role == "system" and "tools" in message and message["tools"] is not none %}
{{- "<|system|>" + message.content + "<|tool|>" + message.tools + "<|/tool|><|end|>" }}
{%- else %}{{ "<|" + message.role + "|>" + message.content + "<|end|>" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ "<|assistant|>" }}{% else %}{{ eos_token }}{% endif %}"""


def _mistral(calls: str, space: str) -> str:
    return _MISTRAL.replace("CALLS\n", f"{calls}\n").replace("SPACE", space)


TEMPLATES = {
    "Qwen2.5": _QWEN25,
    "Qwen3": _QWEN3.replace("OPENED", ""),
    "Qwen3-Thinking": _QWEN3.replace("OPENED", "<think>\n"),
    "Llama 3.1": _LLAMA.replace("DATED", "false"),
    "Llama 3.2": _LLAMA.replace("DATED", "true"),
    "Mistral v0.3": _mistral(_MISTRAL_LIST, " "),
    "Mistral Nemo": _mistral(_MISTRAL_LIST, ""),
    "Mistral Small 3.2": _mistral(_MISTRAL_NAMED, ""),
    "Gemma 2": _GEMMA.replace("SYSTEM", '{{ raise_exception("no system") }}'),
    "Gemma 3": _GEMMA.replace("SYSTEM", '{% set first = messages[0].content + "\\n\\n" %}'),
    "Phi-4": _PHI4,
    "Phi-4-mini": _PHI4_MINI,
    "DeepSeek-R1": _R1,
    **WITH_OWN_CALLS,
}
# The rest gets functions and calls as text.
NATIVE = {name for name in TEMPLATES if name.startswith(("Qwen", "Llama", "Mistral"))} - {"Qwen3-Coder"}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
_MARKS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|return|>", "<|eot|>", "<|eom|>", "<|END|>", *SPECIAL.values())


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    """Each byte is a token, and each mark that ends an answer."""
    alphabet = {byte: number for number, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    bytewise.add_special_tokens([AddedToken(mark, special=True) for mark in _MARKS])
    return PreTrainedTokenizerFast(tokenizer_object=bytewise, chat_template=template, **SPECIAL)


def make_tiny(folder: Path, template: str) -> None:
    """Save a checkpoint of one narrow layer, with this template."""
    tokenizer = tokenizer_of(template)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), max_position_embeddings=4096, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
