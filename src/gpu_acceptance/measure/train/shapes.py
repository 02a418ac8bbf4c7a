"""The shapes of the models that are trained: plain numbers, as a profile gives them."""

from dataclasses import dataclass

NUM_CLASSES = 1_000  # of ImageNet
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # with adapters


@dataclass(frozen=True)
class Adapter:
    """LoRA (Hu et al. 2021) on all seven projections of a layer: W x + (alpha / rank) B A x, where A and B are trained."""

    rank: int
    alpha: int
    in_bf16: bool = True  # the base, and computing with it; adapters are in fp32


@dataclass(frozen=True)
class Decoder:
    """The shape of a decoder of tokens. `num_kv_heads` and `mlp_width` are for Llama and Qwen2; GPT-2 has `num_heads`, and 4 widths."""

    kind: str
    num_layers: int
    width: int
    num_heads: int
    vocabulary: int
    sequence: int  # tokens
    num_kv_heads: int = 0
    mlp_width: int = 0
    initial_std: float = 0.02  # of the weights
    adapter: Adapter | None = None  # with one the other weights are frozen


@dataclass(frozen=True)
class ResNet:
    """The shape of a residual network for images."""

    depth: int
    image_size: int  # pixels each way
    width: int = 64  # channels of the first stage; 64 is the published network


Shape = Decoder | ResNet


@dataclass(frozen=True)
class Workload:
    """A model, and the batch that one rank trains in a step."""

    name: str
    shape: Shape
    batch_size: int
    sized_by: str = ""  # the parameter of the profile that sets the batch size

    @property
    def item(self) -> str:
        """The unit that a rate counts."""
        return "image" if isinstance(self.shape, ResNet) else "token"

    @property
    def unit(self) -> str:
        """The unit of a rate."""
        return f"{self.item}s/s"

    @property
    def items_per_step(self) -> int:
        """Images, or tokens, that one rank trains in a step."""
        return self.batch_size * self.items_per_sample

    @property
    def items_per_sample(self) -> int:
        return 1 if isinstance(self.shape, ResNet) else self.shape.sequence
