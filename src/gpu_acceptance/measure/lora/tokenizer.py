"""The tokenizer of a checkpoint, and its chat template: there, and able to offer functions. Needs neither tokenizers nor transformers."""

import re

from gpu_acceptance.measure.lora.model_reader import CheckpointError, Reader

TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
_TOOLS = re.compile(r"\btools\b")


def look_at_tokenizer(seen: Reader) -> None:
    """Raises CheckpointError, OSError."""
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if not seen.has(name):
            raise CheckpointError(f"{seen.folder}: no {name}: a tokenizer of its own is wanted, as save_pretrained of a fast one writes it")
    content = seen.content(TOKENIZER).strip()
    if not (content.startswith(b"{") and content.endswith(b"}")):  # all of its vocabulary is for tokenizers to read
        raise CheckpointError(f"{seen.folder / TOKENIZER}: no object in JSON from end to end; was it copied whole?")
    templates = _templates(seen, seen.object(TOKENIZER_CONFIG).get("chat_template"))
    template = templates.get("tool_use", templates.get("default"))  # as `get_chat_template` of transformers chooses where there are tools
    if template is None:
        raise CheckpointError(f"{seen.folder}: no chat template: neither {TEMPLATE}, nor chat_template in {TOKENIZER_CONFIG}")
    if not _TOOLS.search(template):
        raise CheckpointError(f"{seen.folder}: its chat template takes no tools; wanted: one that functions can be offered by")


def _templates(seen: Reader, told: object) -> dict[str, str]:
    """By name; files come before what tokenizer_config.json holds, as they do in transformers."""
    more = sorted((seen.folder / MORE_TEMPLATES).glob("*.jinja"))
    files = {path.stem: f"{MORE_TEMPLATES}/{path.name}" for path in more} | ({"default": TEMPLATE} if seen.has(TEMPLATE) else {})
    if files:
        return {name: seen.text(file) for name, file in files.items()}
    listed = told if isinstance(told, list) else [{"name": "default", "template": told}]
    pairs = [(one.get("name"), one.get("template")) for one in listed if isinstance(one, dict)]
    return {name: template for name, template in pairs if isinstance(name, str) and isinstance(template, str)}
