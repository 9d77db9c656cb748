# python/keyhole/deepseek.py
"""DeepSeekSparseAttention: an attention layer that attends to the keys its indexer chooses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from .functional import attention
from .heads import GroupedHeads, LatentHeads, Rotate
from .indexer import IndexerInputs, LightningIndexer, Rope, check_inputs, checked_size
from .pattern import Pattern, as_integer, as_pattern
from .plan import Plan
from .select import index_loss, select_keys
from .selection_cost import SelectionReport, explain_selection
from .torch_attention.refusals import refuse_learned

__all__ = ["DeepSeekSparseAttention", "SparseResult"]

Tensor = torch.Tensor
Extend = Callable[..., "tuple[Tensor, ...]"]

STAGES = ("dense", "warmup", "sparse")
_SETTINGS = ("stage", "top_k", "visible", "always", "rows", "source")


class SparseResult(NamedTuple):
    """What a layer returns."""

    output: Tensor  # [batch, q_len, dim]
    loss: Tensor | None  # one number: the mean divergence of the indexer from the attention
    indices: Tensor | None  # int32 [batch, groups, q_len, top_k]: the chosen keys, ascending, then -1


class DeepSeekSparseAttention(nn.Module):
    """Attention over the top_k keys that an indexer chooses for each query.

    dim             the size of the input and the output
    num_heads       the number of query heads
    top_k           how many keys a query attends to
    num_kv_heads    the number of key and value heads, a divisor of num_heads; num_heads by default
    head_dim        dim // num_heads by default
    latent_dim      None, or the size of the latent vector of multi-head latent attention, such as 512. Then
                    num_kv_heads is not given, and keys have rope_head_dim more dimensions, which carry the positions
    rope_head_dim, v_head_dim
                    of latent heads; 64 and head_dim by default
    stage           "dense": plain attention over all visible keys, without the indexer
                    "warmup": the same, and the loss of the indexer over all visible keys
                    "sparse": attention over the chosen keys, and the loss of the indexer over them
    visible         which keys a query may see: a pattern, its text, or a plan; "causal" by default. A pattern that
                    differs between heads (per_head) counts query heads in stage "dense", and the groups of the indexer
                    in stage "sparse"; "warmup" needs as many of both
    always          a pattern whose keys are chosen before all others, such as "sinks(4) | window(63)"
    rows            None, or how many queries of a call the loss is computed for, drawn at random
    index_heads, index_dim, groups, rope_dim, rope_layout, hadamard, quantize
                    of the indexer, see LightningIndexer; groups is 1 or num_kv_heads. rope_layout is also that of
                    latent heads
    context_dim     the size of the context, for cross-attention; dim by default
    bias, sink, scale, softcap, deterministic
                    as in SparseAttention

    The indexer learns from its loss alone, and nothing else does: its input is detached, and the attention is its
    target. Which keys are chosen has no gradient. Add `result.loss` to the loss of the model. It is computed while the
    layer is in training mode.

    >>> import torch
    >>> import keyhole
    >>> layer = keyhole.nn.DeepSeekSparseAttention(
    ...     64, num_heads=4, num_kv_heads=2, top_k=8, index_heads=2, index_dim=16)
    >>> result = layer(torch.randn(2, 100, 64))
    >>> result.output.shape, result.loss.shape, result.indices.shape
    (torch.Size([2, 100, 64]), torch.Size([]), torch.Size([2, 1, 100, 8]))
    """

    visible: Pattern | Plan
    always: Pattern | Plan | None
    last_indices: Tensor | None

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        top_k: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        latent_dim: int | None = None,
        rope_head_dim: int | None = None,
        v_head_dim: int | None = None,
        stage: str = "sparse",
        visible: Pattern | Plan | str = "causal",
        always: Pattern | Plan | str | None = None,
        rows: int | None = None,
        index_heads: int = 64,
        index_dim: int = 128,
        groups: int = 1,
        rope_dim: int = 64,
        rope_layout: str | None = None,
        hadamard: bool = True,
        quantize: str | None = None,
        context_dim: int | None = None,
        bias: bool = False,
        sink: bool = False,
        scale: float | None = None,
        softcap: float = 0.0,
        deterministic: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        placed = {"device": device, "dtype": dtype}
        sizes = {
            "dim": dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim,
            "latent_dim": latent_dim, "rope_head_dim": rope_head_dim, "v_head_dim": v_head_dim, "groups": groups,
            "context_dim": context_dim,
        }  # fmt: skip
        for name, size in sizes.items():
            if size is not None:
                checked_size("DeepSeekSparseAttention", name, size)
        kv_heads = _checked_heads(num_heads, num_kv_heads, latent_dim, groups)
        if head_dim is None:
            if dim % num_heads != 0:
                raise ValueError(
                    f"DeepSeekSparseAttention: dim {dim} is not a multiple of num_heads {num_heads}; pass head_dim"
                )
            head_dim = dim // num_heads
        refuse_learned("DeepSeekSparseAttention", scale=scale, softcap=softcap)
        of_context = dim if context_dim is None else context_dim
        heads: GroupedHeads | LatentHeads
        if latent_dim is None:
            _refuse_latent(rope_head_dim=rope_head_dim, v_head_dim=v_head_dim)
            heads = GroupedHeads(dim, of_context, num_heads, kv_heads, head_dim, scale, bias=bias, **placed)
        else:
            heads = LatentHeads(
                dim, of_context, num_heads, head_dim, latent_dim=latent_dim,
                rope_head_dim=64 if rope_head_dim is None else rope_head_dim,
                v_head_dim=head_dim if v_head_dim is None else v_head_dim, rope_layout=rope_layout, scale=scale,
                bias=bias, **placed,
            )  # fmt: skip
        indexer = LightningIndexer(
            dim, index_heads, index_dim, rope_dim=rope_dim, rope_layout=rope_layout, hadamard=hadamard,
            quantize=quantize, groups=groups, context_dim=context_dim, **placed,
        )  # fmt: skip
        # A logit of 0 weighs as much as a key with score 0.
        logits = nn.Parameter(torch.zeros(num_heads, **placed)) if sink else None
        super().__init__()
        self.heads = heads
        self._begin(
            indexer, logits, softcap, deterministic, top_k=top_k, stage=stage, visible=visible, always=always, rows=rows
        )

    def _begin(
        self, indexer: LightningIndexer, sink: Tensor | None, softcap: float, deterministic: bool, **settings: Any
    ) -> None:
        """All that a layer has besides its heads."""
        self.indexer = indexer
        self.sink = sink
        self.softcap = softcap
        self.deterministic = deterministic
        self.last_indices = None  # kept for layers that have this one as their source
        self._source: tuple[DeepSeekSparseAttention, ...] = ()  # in a tuple it is no submodule
        self._readers = 0  # how many layers have this one as their source
        self.set(**settings)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without what the last forward pass left."""
        return {**self.__dict__, "last_indices": None}

    def set(self, **settings: Any) -> None:
        """Changes stage, top_k, visible, always, rows or source. `source` is another layer, whose lists this one uses
        instead of its own indexer, or None. In stage "sparse", top_k, visible and always are then those of the source.

        A layer with a source takes the lists of the last forward pass of the source, whatever they were chosen for. So
        run the source on the same input before it, and run the backward pass before the next forward pass if
        checkpointing computes layers again. Where that is not so, pass `indices` to the call instead.
        """
        for name in settings:
            if name not in _SETTINGS:
                raise TypeError(f"DeepSeekSparseAttention: no setting {name!r}; accepted are {', '.join(_SETTINGS)}")
        checked = {name: getattr(self, f"_checked_{name}")(value) for name, value in settings.items()}
        for name, value in checked.items():  # after all were checked: an error changes nothing
            if name == "source":
                self._take_lists_of(value)
            else:
                setattr(self, name, value)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        rope: Rope | None = None,
        rotate: Rotate | None = None,
        indices: Tensor | None = None,
        visible: Pattern | Plan | str | Callable[[int], Plan] | None = None,
        rows: int | Tensor | None = None,
        extend: Extend | None = None,
    ) -> SparseResult:
        """Attention from x [batch, q_len, dim] to context [batch, k_len, dim], or to x itself.

        rope        (cos, sin), see LightningIndexer.forward: for the indexer, and for latent heads. Other heads get no
                    positions from it: pass rotate as well
        rotate      for other heads: rotate(q, k) returns them with their positions encoded, as in SparseAttention
        indices     lists of another layer, in stage "sparse": used instead of the indexer of this one, which then has
                    no loss
        visible, rows
                    in place of those of the layer. visible may also be a function that returns a plan for a number of
                    heads, and rows a tensor with the numbers of the queries, in ascending order
        extend      for caches: extend(k, v) returns them with the keys and values of earlier tokens in front. Both are
                    [batch, length, heads, head_dim]. Where the indexer runs, extend(k, v, index_k) is called and
                    returns all three; index_k is [batch, length, groups, index_dim]
        returns     SparseResult: output, loss and indices. The last two are None where there are none
        """
        check_inputs("DeepSeekSparseAttention", x, context, self.indexer.dim, self.indexer.context_dim)
        seen: Any = self.visible if visible is None else visible
        rows = self.rows if rows is None else _checked_rows(rows)
        is_sparse = self.stage == "sparse"
        if indices is not None and not is_sparse:
            raise ValueError(
                f"DeepSeekSparseAttention: indices were passed in stage {self.stage!r}, which attends to all visible "
                "keys; pass none, or call set(stage='sparse')"
            )
        indices = self._given(indices, x.shape[1]) if is_sparse else None
        # A layer that uses the lists of another one does not choose, and its indexer has nothing to learn.
        has_loss = self.training and self.stage != "dense" and indices is None and not self._source
        learned = for_groups = None
        if has_loss or (is_sparse and indices is None):
            for_groups = self._for_groups(seen, self.indexer.groups) if callable(seen) else seen
            learned = self._indexed(x, context, rope, has_loss)
        q, k, v = self.heads.project(x, x if context is None else context, rope, rotate, is_dense=not is_sparse)
        if extend is not None:
            k, v, learned = _extended(extend, k, v, learned, self.stage)
        if is_sparse and indices is None:
            indices = self._chosen(learned, for_groups)
        if self._readers:
            self.last_indices = indices
        for_heads = seen(q.shape[2]) if callable(seen) else seen
        out, lse = attention(
            q, k, v, indices if is_sparse else for_heads, scale=self.heads.scale, layout="bshd", softcap=self.softcap,
            sink=self.sink, return_lse=True, deterministic=self.deterministic,
        )  # fmt: skip
        loss = None
        if has_loss:
            loss = self._loss(learned, q, k, lse.detach(), indices if is_sparse else for_groups, rows)
        return SparseResult(self.heads.output(out, is_dense=not is_sparse), loss, indices)

    def explain(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        batch: int = 1,
        visible: Pattern | Plan | str | None = None,
        rates: Mapping[str, float] | None = None,
    ) -> SelectionReport:
        """What choosing costs this layer beside dense attention, for a text of q_len tokens: `explain_selection` with
        the sizes of the layer. Layers that share lists share the cost of the indexer. Arithmetic; nothing runs.

        k_len, batch, rates
                    as in `explain_selection`. A layer that is neither bf16 nor fp16 is taken as bf16
        visible     in place of that of the layer

        >>> import keyhole
        >>> layer = keyhole.nn.DeepSeekSparseAttention(
        ...     4096, num_heads=32, num_kv_heads=4, top_k=2048, index_heads=16, index_dim=64, device="meta")
        >>> round(layer.explain(131072).speedup, 1)
        2.0
        """
        dtype = "f16" if self.indexer.q_proj.weight.dtype == torch.float16 else "bf16"
        chooses = self._source[0] if self._source else self
        return explain_selection(
            q_len,
            k_len,
            batch=batch,
            rates=rates,
            top_k=chooses.top_k,
            visible=chooses.visible if visible is None else visible,
            dtype=dtype,
            index_dtype=dtype if chooses.indexer.quantize is None else chooses.indexer.quantize,
            index_heads=chooses.indexer.index_heads,
            index_dim=chooses.indexer.index_dim,
            groups=chooses.indexer.groups,
            shared_by=1 + chooses._readers,
            **self.heads.sizes(),
        )

    def extra_repr(self) -> str:
        text = f"top_k={self.top_k}, stage={self.stage!r}, visible={self.visible!r}"
        for name, default in (("always", None), ("rows", None), ("softcap", 0.0), ("deterministic", False)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)!r}"
        return text + (", lists of another layer" if self._source else "")

    def _indexed(self, x: Tensor, context: Tensor | None, rope: Rope | None, is_learned: bool) -> IndexerInputs:
        """The input is detached: the indexer does not change the layers below."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_learned):
            return self.indexer.inputs(x.detach(), None if context is None else context.detach(), rope=rope)

    def _chosen(self, learned: Any, visible: Any) -> Tensor:
        with torch.no_grad():
            q, k, w, k_scale = self.indexer.quantized(learned)
            return self._for_groups(  # type: ignore[no-any-return]
                select_keys, q, k, w, k_scale=k_scale, top_k=self.top_k, visible=visible, always=self.always
            )

    def _given(self, indices: Any, q_len: int) -> Tensor | None:
        """The lists that come from elsewhere, if any: those of the call, or of the source."""
        if indices is None and self._source:
            indices = self._source[0].last_indices
            if indices is None:
                raise RuntimeError(
                    "DeepSeekSparseAttention: this layer uses the lists of another layer, which has not chosen any; "
                    "call that layer first, in stage 'sparse', or set source=None"
                )
        return None if indices is None else _checked_indices(indices, q_len)

    def _loss(self, learned: Any, q: Tensor, k: Tensor, lse: Tensor, lists: Any, rows: Any) -> Tensor:
        q_len = q.shape[1]
        if isinstance(rows, int):
            drawn = min(rows, q_len)
            rows = torch.randperm(q_len, device=q.device)[:drawn].sort().values
        loss = self._for_groups(
            index_loss, learned.q, learned.k, learned.w, q.transpose(1, 2), k.transpose(1, 2), lse, lists, rows=rows,
            scale=self.heads.scale, softcap=self.softcap, deterministic=self.deterministic,
        )  # fmt: skip
        compared = loss.shape[0] * loss.shape[1] * (q_len if rows is None else rows.shape[0])
        return loss.sum() / max(compared, 1)

    def _for_groups(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls a function for which patterns differ between groups, and says so where per_head does not fit."""
        try:
            return function(*arguments, **options)
        except ValueError as error:
            if "per_head" not in str(error):
                raise
            groups = self.indexer.groups
            raise ValueError(
                f"DeepSeekSparseAttention: {error}. In stage {self.stage!r} visible and always have a pattern for each "
                f"group of the indexer, not for each head, and it has {groups} group{'s' if groups > 1 else ''}; pass "
                "groups=..., or a pattern that all heads share"
            ) from None

    def _checked_stage(self, stage: Any) -> str:
        if stage not in STAGES:
            raise ValueError(
                f"DeepSeekSparseAttention: stage is {stage!r}; accepted are 'dense', 'warmup' and 'sparse'"
            )
        return str(stage)

    def _checked_top_k(self, top_k: Any) -> int:
        return checked_size("DeepSeekSparseAttention", "top_k", top_k)

    def _checked_visible(self, visible: Any) -> Pattern | Plan:
        return visible if isinstance(visible, Plan) else as_pattern(visible, "DeepSeekSparseAttention: visible")

    def _checked_always(self, always: Any) -> Pattern | Plan | None:
        is_kept = always is None or isinstance(always, Plan)
        return always if is_kept else as_pattern(always, "DeepSeekSparseAttention: always")

    def _checked_rows(self, rows: Any) -> int | None:
        if isinstance(rows, Tensor):
            raise TypeError(
                "DeepSeekSparseAttention: rows is a torch tensor; a layer keeps a number, or None for all: pass a "
                "tensor of rows to the call"
            )
        return None if rows is None else _checked_rows(rows)

    def _checked_source(self, source: Any) -> DeepSeekSparseAttention | None:
        if source is not None:
            if not isinstance(source, DeepSeekSparseAttention) or source is self:
                raise TypeError("DeepSeekSparseAttention: source is another DeepSeekSparseAttention layer, or None")
            if source._source:
                raise ValueError(
                    "DeepSeekSparseAttention: the source of a layer has a source of its own; use the layer that chooses"
                )
        return source

    def _take_lists_of(self, source: DeepSeekSparseAttention | None) -> None:
        if source is not None:
            source._readers += 1
        for former in self._source:
            former._readers -= 1
            if former._readers == 0:
                former.last_indices = None
        self._source = () if source is None else (source,)


def _checked_rows(rows: Any) -> Any:
    """A number of queries as an int, or the numbers of the queries, which `index_loss` checks."""
    if isinstance(rows, Tensor):
        return rows
    rows = as_integer(rows, "DeepSeekSparseAttention: rows")
    if rows < 1:
        raise ValueError(f"DeepSeekSparseAttention: rows is {rows}; expected 1 or more, or None for all")
    return rows


def _checked_indices(indices: Any, q_len: int) -> Tensor:
    if not isinstance(indices, Tensor) or indices.dtype not in (torch.int32, torch.int64):
        what = f"of {indices.dtype}" if isinstance(indices, Tensor) else f"a {type(indices).__name__}"
        raise TypeError(f"DeepSeekSparseAttention: indices is {what}; accepted are torch tensors of int32 or int64")
    if indices.dim() != 4 or indices.shape[2] != q_len:
        raise ValueError(
            f"DeepSeekSparseAttention: indices has shape {list(indices.shape)}; expected [batch, groups, q_len, keys] "
            f"with a list for each of the {q_len} queries, as a layer returns them for the same x"
        )
    return indices


def _refuse_latent(**given: int | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"DeepSeekSparseAttention: {name} is {value}, which only latent heads have; pass latent_dim as well, "
                f"or leave {name} out"
            )


def _extended(
    extend: Extend, k: Tensor, v: Tensor, learned: IndexerInputs | None, stage: str
) -> tuple[Tensor, Tensor, IndexerInputs | None]:
    """Keys, values and, where the indexer runs, its keys, with those of a cache in front."""
    if learned is None:
        k, v = extend(k, v)
        return k, v, None
    index_k = learned.k.transpose(1, 2)
    found = extend(k, v, index_k) if _takes_three(extend) else ()
    if len(found) != 3:
        raise ValueError(
            f"DeepSeekSparseAttention: in stage {stage!r} the indexer runs, and extend takes and returns its keys, "
            "too: extend(k, v, index_k). Or pass all tokens as context without extend, or indices="
        )
    k, v, index_k = found
    if index_k.shape[1] != k.shape[1]:
        raise ValueError(
            f"DeepSeekSparseAttention: extend returned {k.shape[1]} keys, and {index_k.shape[1]} of the indexer; a "
            "cache keeps both for every token"
        )
    return k, v, learned._replace(k=index_k.transpose(1, 2))


def _takes_three(extend: Extend) -> bool:
    if torch.compiler.is_compiling():  # inspect cannot be traced
        return True
    try:
        inspect.signature(extend).bind(None, None, None)
    except TypeError:
        return False
    return True


def _checked_heads(num_heads: int, num_kv_heads: int | None, latent_dim: int | None, groups: int) -> int:
    if latent_dim is not None:
        if num_kv_heads is not None:
            raise ValueError(
                f"DeepSeekSparseAttention: num_kv_heads is {num_kv_heads} and latent_dim {latent_dim}; latent heads "
                "share one key: pass one of the two"
            )
        num_kv_heads = 1
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % num_kv_heads != 0:
        raise ValueError(
            f"DeepSeekSparseAttention: num_heads is {num_heads} and num_kv_heads {num_kv_heads}; the first must be a "
            "multiple of the second"
        )
    if groups not in (1, num_kv_heads):
        raise ValueError(
            f"DeepSeekSparseAttention: groups is {groups}; expected 1, one list for all heads, or {num_kv_heads}, one "
            "for each key head"
        )
    return num_kv_heads
