"""Chat templates that write calls by marks of their own, or none, in words of our own: what is alike is what `chat_templates` says.

Read for it, 2026-11: the templates of Qwen3-Coder, GLM-4.6, DeepSeek-V3.1, Kimi-K2, gpt-oss, Llama 4, Granite 3.3, Command-R7B, OLMo-2,
SmolLM3 and MiniMax-M2, as llama.cpp and model cards have them.
"""

_CODER = """\
{%- if messages[0].role == "system" %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set rest = messages %}{% endif %}
{%- if system is defined or tools %}<|im_start|>system
{{ system | default("You are helpful.") }}
{%- for tool in tools or [] %}
<function>
<name>{{ tool.function.name }}</name>
<description>{{ tool.function.description }}</description>
{%- for name, told in tool.function.parameters.properties | items %}
<parameter><name>{{ name }}</name><description>{{ told.description }}</description></parameter>{% endfor %}
</function>{% endfor %}<|im_end|>
{% endif %}
{%- for message in rest %}
{%- if message.role == "assistant" and message.tool_calls %}<|im_start|>assistant
{% if message.content is string and message.content.strip() %}{{ message.content.strip() + "\\n" }}{% endif %}
{%- for call in message.tool_calls %}
<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% elif message.role in ["user", "system", "assistant"] %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == "tool" %}{% if loop.previtem.role != "tool" %}<|im_start|>user
{% endif %}<tool_response>
{{ message.content }}
</tool_response>
{% if loop.last or loop.nextitem.role != "tool" %}<|im_end|>
{% endif %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_GLM = """\
[gMASK]<sop>
{%- if tools -%}
<|system|>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == "user" %}<|user|>
{{ m.content }}
{%- elif m.role == "assistant" %}<|assistant|>
{%- set thought, content = "", m.content %}
{%- if m.reasoning_content is string %}{% set thought = m.reasoning_content %}
{%- elif "</think>" in content %}
{%- set thought = content.split("</think>")[0].rstrip("\\n").split("<think>")[-1].lstrip("\\n") %}
{%- set content = content.split("</think>")[-1].lstrip("\\n") %}{% endif %}
{%- if loop.index0 > ns.last and thought %}
{{ "\\n<think>" + thought.strip() + "</think>" }}
{%- else %}
{{ "\\n<think></think>" }}
{%- endif %}
{%- if content.strip() %}{{ "\\n" + content.strip() }}{% endif %}
{%- for tc in m.tool_calls or [] %}
{{ "\\n<tool_call>" + tc.function.name }}
{% for k, v in tc.function.arguments.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{%- elif m.role == "tool" %}
{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{ "<|observation|>" }}{% endif %}
{{- "\\n<tool_response>\\n" + m.content + "\\n</tool_response>" }}
{%- elif m.role == "system" %}<|system|>
{{ m.content }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
_DEEPSEEK = """\
{%- set ns = namespace(is_tool=false, is_first=false, system="", is_user=false) %}
{%- for message in messages %}{% if message.role == "system" %}{% set ns.system = ns.system + message.content %}{% endif %}{% endfor %}
{{- bos_token }}{{ ns.system }}
{%- for message in messages %}
{%- if message.role == "user" %}{% set ns.is_tool = false %}{% set ns.is_first = false %}{% set ns.is_user = true %}
{{- "<|User|>" + message.content }}{% endif %}
{%- if message.role == "assistant" and message["tool_calls"] is defined and message["tool_calls"] is not none %}
{%- if ns.is_user %}{{ "<|Assistant|></think>" }}{% endif %}
{%- set ns.is_user = false %}{% set ns.is_first = false %}{% set ns.is_tool = false %}
{%- for call in message.tool_calls %}
{%- if not ns.is_first %}{{ message.content + "<|calls_begin|>" }}{% set ns.is_first = true %}{% endif %}
{{- "<|call_begin|>" + call.function.name + "<|sep|>" + call.function.arguments + "<|call_end|>" }}{% endfor %}
{{- "<|calls_end|>" + eos_token }}{% endif %}
{%- if message.role == "assistant" and (message["tool_calls"] is not defined or message["tool_calls"] is none) %}
{%- if ns.is_user %}{{ "<|Assistant|></think>" }}{% endif %}
{%- set ns.is_user = false %}
{%- if ns.is_tool %}{{ message.content + eos_token }}{% set ns.is_tool = false %}
{%- else %}{% set content = message.content %}
{%- if "</think>" in content %}{% set content = content.split("</think>", 1)[1] %}{% endif %}{{ content + eos_token }}{% endif %}{% endif %}
{%- if message.role == "tool" %}{% set ns.is_user = false %}{% set ns.is_tool = true %}
{{- "<|output_begin|>" + message.content + "<|output_end|>" }}{% endif %}{% endfor %}
{%- if add_generation_prompt and ns.is_user and not ns.is_tool %}{{ "<|Assistant|></think>" }}{% endif %}"""
_KIMI = """\
{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}
{%- for message in messages %}
{%- if loop.first and messages[0].role != "system" %}<|im_system|>system<|im_middle|>You are helpful.<|im_end|>{% endif %}
{%- set name = message.name or message.role %}
{%- if message.role == "system" %}<|im_system|>{{ name }}<|im_middle|>
{%- elif message.role == "user" %}<|im_user|>{{ name }}<|im_middle|>
{%- elif message.role == "assistant" %}<|im_assistant|>{{ name }}<|im_middle|>
{%- else %}<|im_system|>{{ name }}<|im_middle|>{% endif %}
{%- if message.role == "assistant" and message.get("tool_calls") %}{{ message.content }}<|calls_begin|>
{%- for call in message.tool_calls %}<|call_begin|>{{ call.id }}<|call_argument_begin|>
{{- call.function.arguments | tojson }}<|call_end|>{% endfor %}<|calls_end|>
{%- elif message.role == "tool" %}## Return of {{ message.tool_call_id }}
{{ message.content }}
{%- else %}{{ message.content }}{% endif %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"""
_HARMONY = """\
{{- "<|start|>system<|message|>Today: " + strftime_now("%Y-%m-%d") + "<|end|>" }}
{%- if messages[0].role in ["system", "developer"] %}{% set words = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set words = "" %}{% set rest = messages %}{% endif %}
{%- if words or tools %}{{ "<|start|>developer<|message|>" + words }}
{%- if tools %}{{ "\\nnamespace functions {\\n" }}
{%- for tool in tools %}{{ "// " + tool.function.description + "\\ntype " + tool.function.name + " = (_: {" }}
{%- for name, told in tool.function.parameters.properties.items() %}{{ name + ": " + told.type + ", " }}{% endfor %}{{ "}) => any;\\n" }}
{%- endfor %}{{ "}" }}{% endif %}{{ "<|end|>" }}{% endif %}
{%- set last = namespace(name=none) %}
{%- for message in rest %}
{%- if message.role == "assistant" %}
{%- if "<|channel|>final<|message|>" in message.content %}{{ raise_exception("channels in a content") }}{% endif %}
{%- if "tool_calls" in message %}
{%- set future = namespace(found=false) %}
{%- for other in rest[loop.index:] if other.role == "assistant" and "tool_calls" not in other %}{% set future.found = true %}{% endfor %}
{%- set call = message.tool_calls[0].function %}
{%- if message.content and not future.found %}{{ "<|start|>assistant<|channel|>analysis<|message|>" + message.content + "<|end|>" }}
{%- endif %}
{{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" + call.arguments | tojson + "<|call|>" }}
{%- set last.name = call.name %}
{%- elif loop.last and not add_generation_prompt %}
{%- if "thinking" in message %}{{ "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{% endif %}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
{%- else %}{{ "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{% set last.name = none %}{% endif %}
{%- elif message.role == "tool" %}
{%- if last.name is none %}{{ raise_exception("a result without a call") }}{% endif %}
{{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" + message.content | tojson + "<|end|>" }}
{%- else %}{{ "<|start|>user<|message|>" + message.content + "<|end|>" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
_LLAMA4 = """\
{{ bos_token }}
{%- if messages[0].role == "system" %}{% set system = messages[0].content | trim %}{% set rest = messages[1:] %}
{%- else %}{% set system = "" %}{% set rest = messages %}{% endif %}
{%- if system or tools %}{{ "<|header_start|>system<|header_end|>\\n\\n" + system }}
{%- for tool in tools or [] %}{{ tool | tojson(indent=4) + "\\n\\n" }}{% endfor %}{{ "<|eot|>" }}{% endif %}
{%- for message in rest %}
{%- if not (message.role in ["ipython", "tool"] or "tool_calls" in message) %}
{{- "<|header_start|>" + message.role + "<|header_end|>\\n\\n" + message.content | trim + "<|eot|>" }}
{%- elif "tool_calls" in message and message.tool_calls | length > 0 %}
{{- "<|header_start|>assistant<|header_end|>\\n\\n<|python_start|>" + message.content | trim + "<|python_end|>" }}
{%- for call in message.tool_calls %}
{{- '{"name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + "}" }}{% endfor %}{{ "<|eom|>" }}
{%- else %}{{ "<|header_start|>ipython<|header_end|>\\n\\n" + message.content | tojson + "<|eom|>" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ "<|header_start|>assistant<|header_end|>\\n\\n" }}{% endif %}"""
_GRANITE = """\
{%- if messages[0].role == "system" %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = "Today: " + strftime_now("%B %d, %Y") + "." %}{% set rest = messages %}
{%- if tools %}{% set system = system + " Answer with <|tool_call|> and a list of functions." %}{% endif %}{% endif %}
{{- "<|start_of_role|>system<|end_of_role|>" + system + "<|end_of_text|>\\n" }}
{%- if tools %}{{ "<|start_of_role|>available_tools<|end_of_role|>" + tools | tojson(indent=4) + "<|end_of_text|>\\n" }}{% endif %}
{%- for message in rest %}
{{- "<|start_of_role|>" + message.role + "<|end_of_role|>" + message.content + "<|end_of_text|>\\n" }}
{%- if loop.last and add_generation_prompt %}{{ "<|start_of_role|>assistant<|end_of_role|>" }}{% endif %}{% endfor %}"""
_COMMAND = """\
{{ bos_token }}
{%- set ns = namespace(index=0) %}
{%- if messages[0].role | lower == "system" %}{% set words = messages[0].content %}{% endif %}
<|START|><|SYSTEM|>Preamble.
{% if tools %}
{% for tool in tools %}
    {"name": "{{ tool.function.name }}", "description": "{{ tool.function.description }}"}{% if not loop.last %},{% endif %}

{% endfor %}
{% endif %}
{%- if words %}


{{ words }}
{%- endif -%}
<|END|>
{%- for message in messages %}
{%- if message.role | lower == "system" and not (loop.first and words) %}
<|START|><|SYSTEM|>{{ message.content }}<|END|>
{%- elif message.role | lower == "user" %}
<|START|><|USER|>{{ message.content }}<|END|>
{%- elif message.role | lower == "assistant" %}
<|START|><|CHATBOT|>{% if message.tool_calls %}<|START_THINKING|>{{ message.reasoning_content }}<|END_THINKING|><|START_ACTION|>[
    {% for call in message.tool_calls %}
    {"tool_call_id": "{{ ns.index }}", "tool_name": "{{ call.function.name }}", {% set ns.index = ns.index + 1 -%}
    "parameters": {{ call.function.arguments | tojson }}}{% if not loop.last %},{% endif %}

    {% endfor %}
]<|END_ACTION|><|END|>{% else %}<|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|><|END|>{% endif %}
    {% elif message.role | lower == "tool" %}
<|START|><|SYSTEM|><|START_TOOL_RESULT|>[
{{ message.content | tojson }}

]<|END_TOOL_RESULT|><|END|>
{%- endif %}
{%- endfor %}OPENED"""
_OLMO2 = """\
{{ bos_token }}{% for message in messages %}
{%- if message.role == "assistant" %}{{ "<|assistant|>\\n" + message.content + eos_token + ("" if loop.last else "\\n") }}
{%- elif message.role in ["system", "user"] %}{{ "<|" + message.role + "|>\\n" + message.content + "\\n" }}{% endif %}
{%- if loop.last and add_generation_prompt %}{{ "<|assistant|>\\n" }}{% endif %}{% endfor %}"""
_SMOL = """\
{%- if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}
{%- if enable_thinking %}{% set mode = "/think" %}{% else %}{% set mode = "/no_think" %}{% endif %}
{{- "<|im_start|>system\\n" }}
{%- if messages[0].role == "system" %}{% set system = messages[0].content %}
{%- if "/no_think" in system %}{% set mode = "/no_think" %}{% elif "/think" in system %}{% set mode = "/think" %}{% endif %}
{%- set system = system.replace("/no_think", "").replace("/think", "").rstrip() %}{% endif %}
{{- "Today: " + strftime_now("%d %B %Y") + "\\n" + "Mode: " + mode + "\\n" }}
{%- if system %}{{ system + "\\n" }}{% endif %}
{%- if xml_tools or python_tools %}{% for tool in xml_tools or [] %}{{ tool | string }}{% endfor %}{% endif %}
{{- "<|im_end|>\\n" }}
{%- for message in messages %}{% set content = message.content if message.content is string else "" %}
{%- if message.role == "user" %}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}
{%- elif message.role == "assistant" %}{% generation %}
{%- if mode == "/think" %}{{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
{%- else %}{{ "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}{% endif %}{% endgeneration %}
{%- elif message.role == "tool" %}{{ "<|im_start|>user\\n" + content + "<|im_end|>\\n" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" + ("" if mode == "/think" else "<think>\\n\\n</think>\\n") }}{% endif %}"""
_MINIMAX = """\
{{- "]~!b[]~b]system\\n" }}
{%- if messages[0].role == "system" %}{{ messages[0].content }}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{%- for tool in tools or [] %}
<tool>{{ tool.function | tojson }}</tool>
{% endfor %}{{ "[e~[\\n" }}
{%- set ns = namespace(last=-1) %}
{%- for m in rest %}{% if m.role == "user" %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in rest %}
{%- if m.role == "assistant" %}{{ "]~b]ai\\n" }}
{%- set thought, content = m.reasoning_content or "", m.content %}
{%- if not thought and "</think>" in content %}{% set thought = content.split("</think>")[0].split("<think>")[-1].strip("\\n") %}
{%- set content = content.split("</think>")[-1].strip("\\n") %}{% endif %}
{%- if thought and loop.index0 > ns.last %}{{ "<think>\\n" + thought + "\\n</think>\\n\\n" }}{% endif %}{{ content }}
{%- if m.tool_calls %}{{ "\\n<minimax:tool_call>\\n" }}
{%- for call in m.tool_calls %}{{ '<invoke name="' + call.function.name + '">\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter name="' + name + '">' }}{{ value | tojson if value is not string else value }}{{ "</parameter>\\n" }}{% endfor %}
{{- "</invoke>\\n" }}{% endfor %}{{ "</minimax:tool_call>" }}{% endif %}{{ "[e~[\\n" }}
{%- elif m.role == "tool" %}{{ "]~b]tool\\n<response>" + m.content + "</response>[e~[\\n" }}
{%- else %}{{ "]~b]user\\n" + m.content + "[e~[\\n" }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ "]~b]ai\\n<think>\\n" }}{% endif %}"""

WITH_OWN_CALLS = {
    "Qwen3-Coder": _CODER,
    "GLM-4.6": _GLM,
    "DeepSeek-V3.1": _DEEPSEEK,
    "Kimi-K2": _KIMI,
    "gpt-oss": _HARMONY,
    "Llama 4": _LLAMA4,
    "Granite 3.3": _GRANITE,
    "Command-R7B": _COMMAND.replace("OPENED", "{% if add_generation_prompt %}<|START|><|CHATBOT|>{% endif %}"),
    "OLMo-2": _OLMO2,
    "SmolLM3": _SMOL,
    "MiniMax-M2": _MINIMAX,
}
OPENED = _COMMAND.replace("OPENED", "<|START|><|CHATBOT|>")  # as Command-R7B was published: it begins another answer after each one
