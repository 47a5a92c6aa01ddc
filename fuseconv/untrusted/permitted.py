"""Defines the ops that an untrusted file may name. The file may contain a rule, its examples, a plan or an archive.

The file is data, but its ops are run: to test a rule, to compute a constant, or to capture a program. Therefore an op
may only take and return tensors and numbers. An op is permitted if it satisfies all of the following conditions:

- it is in a namespace of ops that compute tensors, and registered with the dispatcher, which excludes TorchScript's
  built-in functions;
- its arguments are tensors, numbers, dtypes, layouts, devices, and strings that select a variant (`approximate`);
- its name does not begin with an underscore, except for ops that torch.export and torch's decompositions generate.

Some ops satisfy these conditions but replace the memory of a tensor, create tensors with other layouts, or take packed
data without validating the data. These ops are excluded by name.

Ops of other libraries are permitted after the user has trusted a pack that loads them; see `trust_libraries`.
"""

from __future__ import annotations

import re
from functools import cache

import torch

NAMESPACES = frozenset({"aten", "fuseconv", "prims", "quantized_decomposed", "torchvision"})
"""The namespaces whose ops may be permitted. `quantized` and `mkldnn` are missing because their ops take packed
weights, `c10d` and `symm_mem` because their ops communicate."""

_TORCHS_OWN = re.compile(
    r"^(_?aten|ao|bucketing|_?c10d\w*|coor|cplib|cuda|debug\w*|device_mesh|_dtensor|export|flex_lib|fsdp|higher_order"
    r"|_?inductor\w*|mempool|mkl\w*|_native|onednn|onnx\w*|pippy|prims?|profiler|_?quanti\w*|rngprims|semi_structured"
    r"|sparse|static_runtime|streams|symm_mem|_test|testlib|_?torch_(attn|nn|testing)|_torchscript\w*|triton)$",
    re.IGNORECASE,
)
"""Matches the namespaces that belong to torch. Trusting a pack does not permit the ops of these namespaces."""

_KINDS = re.compile(
    r"^(Optional\[|List\[)*(Tensor|int|float|bool|complex|number|SymInt|SymFloat|SymBool|ScalarType|Layout|MemoryFormat"
    r"|Device)\]*$"
)
"""Matches the permitted types of arguments and results, as schemas print them."""

_GENERATOR = "Optional[Generator]"
"""A permitted argument type whose value is always None, because a file cannot contain a random generator."""

_WORDS = frozenset(
    {
        *("approximate", "rounding_mode", "reduce", "indexing", "side", "equation", "padding", "padding_side", "mode"),
        *("pad_mode", "interpolation", "norm", "ord", "p", "driver", "UPLO", "assert_msg"),
    }
)
"""The names of permitted string arguments. They select a variant of the op or are the message of an assertion."""

_PRIVATE = frozenset(
    {
        *("__and__", "__iand__", "__or__", "__ior__", "__xor__", "__ixor__", "__lshift__", "__ilshift__"),
        *("__rshift__", "__irshift__", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_add_relu", "_add_relu_"),
        *("_addmm_activation", "_aminmax", "_assert_async", "_assert_scalar", "_assert_tensor_metadata"),
        *("_batch_norm_impl_index", "_batch_norm_no_update", "_batch_norm_with_update"),
        *("_batch_norm_with_update_functional", "_cast_Byte", "_cast_Char", "_cast_Double", "_cast_Float"),
        *("_cast_Half", "_cast_Int", "_cast_Long", "_cast_Short", "_cdist_forward", "_chunk_cat", "_conj"),
        *("_conj_copy", "_conj_physical", "_convolution", "_convolution_mode", "_cummax_helper", "_cummin_helper"),
        *("_ctc_loss", "_dim_arange", "_embedding_bag", "_embedding_bag_forward_only", "_euclidean_dist"),
        *("_fft_c2c", "_fft_c2r", "_fft_r2c", "_functional_assert_async", "_functional_assert_scalar"),
        *("_functional_sym_constrain_range", "_functional_sym_constrain_range_for_size", "_fused_dropout"),
        *("_fused_rms_norm", "_grouped_mm", "_int_mm", "_is_all_true", "_is_any_true", "_linalg_det"),
        *("_linalg_eigh", "_linalg_eigvals", "_linalg_slogdet", "_linalg_solve_ex", "_linalg_svd"),
        *("_local_scalar_dense", "_log_softmax", "_log_softmax_backward_data", "_logcumsumexp", "_lu_with_info"),
        *("_masked_softmax", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
        *("_native_batch_norm_legit_no_training", "_native_multi_head_attention", "_neg_view", "_neg_view_copy"),
        *("_pack_padded_sequence", "_pad_circular", "_pad_enum", "_pad_packed_sequence", "_pdist_forward"),
        *("_prelu_kernel", "_reshape_copy", "_safe_softmax", "_scaled_dot_product_attention_math"),
        *("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_efficient_attention"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
        *("_scaled_dot_product_fused_attention_overrideable", "_scaled_mm", "_shape_as_tensor"),
        *("_reshape_from_tensor", "_softmax", "_softmax_backward_data", "_stack", "_standard_gamma", "_to_copy"),
        *("_transformer_encoder_layer_fwd", "_transform_bias_rescale_qkv", "_trilinear", "_unique", "_unique2"),
        *("_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        *("_unsafe_view", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_lanczos2d_aa"),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_weight_norm"),
        "_weight_norm_interface",
    }
)
"""Permitted ops whose names begin with an underscore, in addition to the ops with the tag `core`."""

_MEMORY = re.compile(
    r"^(set_?|set_data|data|copy_to|copy_strided|resize\w*|requires_grad_|retains?_grad|is_leaf|output_nr|pin_memory"
    r"|is_pinned|record_stream|is_set_to|device_put|get_gradients)$"
)
"""Matches ops that replace the memory of a tensor, or return a property other than the tensor's values."""

_LAYOUTS = re.compile(
    r"^((to_|is_)?(sparse|coalesce|mkldnn|nested)\w*|(crow_|ccol_|col_|row_)?(indices|values)(_copy)?|dense_dim|smm"
    r"|s?spaddmm|hspmm|copy_sparse_to_sparse_?|to_padded_tensor|dequantize|quantize_\w+|empty_quantized|int_repr|qscheme"
    r"|q_\w+|choose_qparams_optimized)$"
)
"""Matches ops on tensors that are not strided: sparse, nested, quantized, or library-specific."""

_PACKED = re.compile(r"^(fbgemm|mkldnn|miopen|cudnn|quantized)_\w+$")
"""Matches ops that expect data packed by another op, or a library's workspace buffer."""

_trusted = False


def trust_libraries() -> None:
    """Permits the ops of other libraries for the rest of this process.

    Call this function after the user has trusted code that registers ops. The ops in torch's own namespaces stay
    restricted.
    """
    global _trusted  # noqa: PLW0603 - the ops of a process are global too
    _trusted = True
    refusal.cache_clear()


def is_permitted_namespace(namespace: str) -> bool:
    """Returns whether a namespace is in `NAMESPACES`, or belongs to another library after `trust_libraries`."""
    return namespace in NAMESPACES or (_trusted and not is_torchs(namespace))


def is_torchs(namespace: str) -> bool:
    """Returns whether a namespace of ops belongs to torch, such as `aten` or `prims`."""
    return _TORCHS_OWN.match(namespace) is not None


def lookup(name: str) -> torch._ops.OpOverload | None:
    """Returns the op with a name such as `aten.gelu.default`, even if it is not permitted, or None if it is unknown."""
    try:
        return _known(name)
    except LookupError:
        return None


@cache
def _known(name: str) -> torch._ops.OpOverload:
    """Returns the op with a name, and caches it. Unknown names are not cached, because an op may be registered later.

    Raises:
        LookupError: no loaded library defines the op.
    """
    if name.count(".") != 2:
        raise LookupError(name)
    namespace, packet, overload = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload):
        raise LookupError(name)
    return found


@cache
def refusal(op: torch._ops.OpOverload) -> str:
    """Returns the reason why an untrusted file may not name an op, or an empty string if the op is permitted."""
    namespace, packet = op._schema.name.split("::")
    if not is_permitted_namespace(namespace):
        return f"ops in the namespace {namespace} can do anything"
    if namespace not in NAMESPACES or namespace == "fuseconv":
        return ""
    if not torch._C._dispatch_has_kernel(op._name):
        return "it is a built-in function of TorchScript, without a kernel"
    if packet.startswith("_") and packet not in _PRIVATE and torch.Tag.core not in op.tags:
        return "it is internal to torch"
    if _MEMORY.match(packet):
        return "it changes or returns properties of a tensor other than its values"
    if _LAYOUTS.match(packet) or _PACKED.match(packet):
        return "it takes or returns tensors that are not strided: sparse, nested, quantized or packed"
    for argument in op._schema.arguments:
        kind = str(argument.real_type)
        if argument.is_out:
            return "it writes its result into an out argument"
        is_word = kind in ("str", "Optional[str]") and argument.name in _WORDS
        if not (is_word or kind == _GENERATOR or _KINDS.match(kind)):
            return f"its argument {argument.name} is a {kind}"
    for result in op._schema.returns:
        if not _KINDS.match(str(result.real_type)):
            return f"it returns a {result.real_type}"
    return ""
