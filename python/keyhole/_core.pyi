# python/keyhole/_core.pyi: the extension, python/bindings/. test_core.py compares the two.
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch

# (pointer, dtype, shape, strides, device), or a torch.Tensor
_Tensor = tuple[int, int, Sequence[int], Sequence[int], int] | torch.Tensor
_Integers = tuple[int, int, Sequence[int], Sequence[int], int]  # the same, with dtype 0: int32, 1: int64
_Shape = tuple[int, int, int, int, int]  # q_len, k_len, batch, heads, offset

has_command_line: bool
SUPPORT_KEYS: int  # entries of a row of `support`

class _Parameter(TypedDict):
    name: str
    kind: str
    is_optional: bool
    may_be_unbounded: bool

class _CatalogRow(TypedDict):
    name: str
    signature: str
    parameters: list[_Parameter]
    definition: str
    meaning: str
    example: str
    example_q_len: int
    example_k_len: int
    complexity: str
    reach: str
    is_composition: bool

class Pattern:
    def text(self) -> str: ...
    def reads_back(self) -> bool: ...
    def conjunction(self, other: Pattern, /) -> Pattern: ...
    def disjunction(self, other: Pattern, /) -> Pattern: ...
    def negation(self) -> Pattern: ...
    def mask(self, q_len: int, k_len: int, offset: int | None, batch: int, head: int) -> bytearray: ...
    def smallest_shape(self) -> tuple[int, int]: ...
    def own_lengths(self) -> tuple[int, int] | None: ...
    def depends_on_heads(self, q_len: int, k_len: int, /) -> bool: ...
    def picture(self, q_len: int, k_len: int, /) -> str: ...
    def count_pairs(self, q_len: int, k_len: int, /) -> int: ...

class Plan:
    def pattern_text(self) -> str: ...
    def shape(self) -> _Shape: ...
    def usual_tile(self) -> tuple[int, int]: ...
    def explain(self, tile_q: int, tile_k: int, head_dim: int, element_bytes: int, /) -> dict[str, Any]: ...
    def runs(self, head_dim: int, element_bytes: int, device: int, /) -> tuple[str, str]: ...
    def verify(self) -> None: ...
    def save(self, path: str, /) -> None: ...
    def to_bytes(self) -> bytes: ...

# indices; or (tile_q, tile_k, tiles, counts, bitmap_of, bitmaps)
_Lists = Plan | _Integers | tuple[int, int, _Integers, _Integers | None, _Integers | None, _Integers | None]

def version() -> str: ...
def parse(text: str, /) -> Pattern: ...
def make(name: str, arguments: tuple[Any, ...], /) -> Pattern: ...
def made_for(made_by: str, q_len: int, k_len: int, batch: int, heads: int, pattern: Pattern, /) -> Pattern: ...
def catalog() -> list[_CatalogRow]: ...
def sample_texts() -> list[str]: ...
def make_plan(pattern: Pattern, q_len: int, k_len: int, batch: int, heads: int, offset: int | None) -> Plan: ...
def load_plan(path: str, /) -> Plan: ...
def plan_from_bytes(data: bytes, /) -> Plan: ...
def tile_lists(
    pattern: Pattern,
    q_len: int,
    k_len: int,
    batch: int,
    heads: int,
    offset: int | None,
    tile_q: int,
    tile_k: int,
) -> dict[str, Any]: ...
def know_plain_calls(
    tensors: tuple[type[torch.Tensor], ...],
    plans: type,
    patterns: type,
    questions: tuple[Callable[[], object], ...],
    forward_ad: object,
    is_grad_enabled: Callable[[], bool],
    plan_for: Callable[[Any, int, int, int, int], Any],
    empty_out: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    num_threads: Callable[[], int],
    current_stream: Callable[[int], int] | None,
) -> None: ...
def forward_if_plain(
    q: object, k: object, v: object, plan: object, scale: object, softcap: object, backend: object
) -> torch.Tensor | None: ...
def know_torch(tensors: type[torch.Tensor], dtypes: tuple[torch.dtype, ...], exchange: object) -> None: ...
def know_torch_memory(
    empty_on_cpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] | None,
    empty_on_gpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor] | None,
    current_gpu: Callable[[], int] | None,
    bytes_on_gpu: Callable[[int, int], torch.Tensor],
    byte: torch.dtype,
) -> None: ...
def forward(
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    lists: _Lists,
    out: _Tensor,
    lse: _Tensor | None,
    support: _Integers | None,
    sink: _Tensor | None,
    scale: float | None,
    softcap: float,
    alpha: float,
    top_k: int,
    backend: str,
    threads: int,
    stream: int,
) -> None: ...
def backward(
    dout: _Tensor,
    dlse: _Tensor | None,
    q: _Tensor,
    k: _Tensor,
    v: _Tensor,
    out: _Tensor,
    lse: _Tensor,
    support: _Integers | None,
    lists: _Lists,
    dq: _Tensor,
    dk: _Tensor,
    dv: _Tensor,
    sink: _Tensor | None,
    dsink: _Tensor | None,
    scale: float | None,
    softcap: float,
    alpha: float,
    top_k: int,
    deterministic: bool,
    backend: str,
    threads: int,
    stream: int,
) -> None: ...
def merge(into_out: _Tensor, into_lse: _Tensor, from_out: _Tensor, from_lse: _Tensor, stream: int) -> None: ...
def kernel_for_forward(
    q: _Tensor,
    v: _Tensor,
    lists: _Lists,
    sink: _Tensor | None,
    scale: float | None,
    softcap: float,
    backend: str,
    deterministic: bool = False,
    alpha: float = 1.0,
    top_k: int = 0,
) -> str: ...
def kernel_for_backward(
    q: _Tensor,
    v: _Tensor,
    lists: _Lists,
    sink: _Tensor | None,
    scale: float | None,
    softcap: float,
    backend: str,
    deterministic: bool = False,
    alpha: float = 1.0,
    top_k: int = 0,
) -> str: ...
def index_scores(
    q: _Tensor,
    k: _Tensor,
    w: _Tensor | None,
    k_scale: _Tensor | None,
    visible: Plan | None,
    scores: _Tensor,
    backend: str,
    threads: int,
    stream: int,
) -> None: ...
def top_k(
    scores: _Tensor,
    indices: _Integers,
    counts: _Integers | None,
    k: int,
    visible: Plan | None,
    always: Plan | None,
    backend: str,
    threads: int,
    stream: int,
) -> None: ...
def select_keys(
    q: _Tensor,
    k: _Tensor,
    w: _Tensor | None,
    k_scale: _Tensor | None,
    indices: _Integers,
    counts: _Integers | None,
    top_k: int,
    visible: Plan | None,
    always: Plan | None,
    backend: str,
    threads: int,
    stream: int,
) -> None: ...
def kernel_for_selection(
    q: _Tensor,
    k: _Tensor,
    w: _Tensor | None,
    k_scale: _Tensor | None,
    top_k: int,
    visible: Plan | None,
    always: Plan | None,
    backend: str,
) -> str: ...
def explain_selection(
    visible: Plan,
    batch: int,
    q_len: int,
    k_len: int,
    k: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    v_head_dim: int,
    latent_dim: int,
    rope_head_dim: int,
    dtype: str,
    index_heads: int,
    index_dim: int,
    index_dtype: str,
    groups: int,
    shared_by: int,
    flops_16bit: float | None,
    flops_8bit: float | None,
    memory: float | None,
    gathered: float | None,
) -> dict[str, Any]: ...
def index_loss_forward(
    index_q: _Tensor,
    index_k: _Tensor,
    w: _Tensor | None,
    k_scale: _Tensor | None,
    q: _Tensor,
    k: _Tensor,
    lse: _Tensor,
    lists: _Lists,
    keys_per_entry: int,
    loss: _Tensor,
    stats: _Tensor,
    rows: _Integers | None,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    backend: str,
    threads: int,
    stream: int,
) -> None: ...
def index_loss_backward(
    dloss: _Tensor,
    index_q: _Tensor,
    index_k: _Tensor,
    w: _Tensor | None,
    k_scale: _Tensor | None,
    q: _Tensor,
    k: _Tensor,
    lse: _Tensor,
    lists: _Lists,
    keys_per_entry: int,
    stats: _Tensor,
    dq: _Tensor,
    dk: _Tensor,
    dw: _Tensor | None,
    rows: _Integers | None,
    scale: float | None,
    softcap: float,
    deterministic: bool,
    backend: str,
    threads: int,
    stream: int,
) -> None: ...
def picture_text(pattern: Pattern, shape: _Shape, batch: int, head: int) -> str: ...
def picture_svg(pattern: Pattern, shape: _Shape, batch: int, head: int) -> str: ...
def picture_html(pattern: Pattern, shape: _Shape, batch: int, head: int, explain: str) -> str: ...
def command_line(words: list[bytes]) -> int: ...
