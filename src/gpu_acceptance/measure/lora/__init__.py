"""LoRA fine-tuning whose loss is known beforehand: at its first step, and at its best."""
