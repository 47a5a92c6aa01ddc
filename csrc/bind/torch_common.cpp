#include <algorithm>

#include "bind/torch.h"

namespace fuseconv::torch_binding {
namespace {

// Returns a tensor object that refers to memory without owning it. The memory must outlive the tensor.
Tensor borrow(const void* data, Dtype dtype, Device device, std::initializer_list<int64_t> sizes,
              std::initializer_list<int64_t> strides) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(const_cast<void*>(data), sizes.size(), sizes.begin(),
                                                            strides.begin(), 0, shim_dtype(dtype), device.type,
                                                            device.index, &handle));
  return Tensor(handle);
}

Tensor borrow(In x, Device device) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(const_cast<void*>(x.data), x.rank, x.sizes, x.strides, 0,
                                                            shim_dtype(x.dtype), device.type, device.index, &handle));
  return Tensor(handle);
}

// Returns [..., K] as [rows, K]: a view if the leading dims have one stride, else a copy.
Tensor flatten_rows(In x, Device device, int64_t rows, int64_t columns) {
  const Loop loop = row_loop(&x, 1);
  const int64_t column_stride = x.strides[x.rank - 1];
  if (rows == 1) {
    return borrow(x.data, x.dtype, device, {1, columns},
                  {std::max<int64_t>(columns * column_stride, 1), column_stride});
  }
  if (loop.rank == 1) {
    return borrow(x.data, x.dtype, device, {rows, columns}, {loop.strides[0][0], column_stride});
  }
  return torch::stable::reshape(torch::stable::contiguous(borrow(x, device)), {rows, columns});
}

// Returns [..., M, N] as [batch, M, N]: a view if the leading dims have one stride, else a copy. If `transposed`, the
// matrices are transposed.
Tensor flatten_batch(In x, Device device, int64_t batch, bool transposed) {
  const int64_t rows = x.sizes[x.rank - 2], columns = x.sizes[x.rank - 1];
  const In matrices{x.data, x.dtype, x.rank - 1, x.sizes, x.strides};  // without the last dim: one row per matrix of x
  const Loop loop = row_loop(&matrices, 1);
  if (loop.rank == 1) {
    const int64_t stride = loop.strides[0][0], row_stride = x.strides[x.rank - 2],
                  column_stride = x.strides[x.rank - 1];
    return transposed ? borrow(x.data, x.dtype, device, {batch, columns, rows}, {stride, column_stride, row_stride})
                      : borrow(x.data, x.dtype, device, {batch, rows, columns}, {stride, row_stride, column_stride});
  }
  const Tensor copy = torch::stable::reshape(torch::stable::contiguous(borrow(x, device)), {batch, rows, columns});
  return transposed ? torch::stable::transpose(copy, 1, 2) : copy;
}

Dtype dtype_of(AtenTensorHandle tensor) {
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &dtype));
  for (Dtype known : {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16, Dtype::i64}) {
    if (dtype == shim_dtype(known)) {
      return known;
    }
  }
  return Dtype::other;
}

}  // namespace

int32_t shim_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return aoti_torch_dtype_float32();
    case Dtype::f64:
      return aoti_torch_dtype_float64();
    case Dtype::f16:
      return aoti_torch_dtype_float16();
    case Dtype::bf16:
      return aoti_torch_dtype_bfloat16();
    case Dtype::i64:
      return aoti_torch_dtype_int64();
    case Dtype::other:
      break;
  }
  throw std::logic_error("fuseconv: outputs() asked for a result without a dtype");
}

In view(AtenTensorHandle tensor) {
  int64_t rank;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &rank));
  check(rank <= kMaxRank, "fuseconv: a tensor has ", rank, " dims; at most ", kMaxRank, " are supported");
  const void* data;
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(tensor, &data));
  int64_t *sizes, *strides;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &sizes));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &strides));
  return {data, dtype_of(tensor), static_cast<int32_t>(rank), sizes, strides};
}

Out writable(const Tensor& tensor) {
  const In read = view(tensor.get());
  return {tensor.mutable_data_ptr(), read.dtype, read.rank, read.sizes, read.strides};
}

void CommonDevice::add(AtenTensorHandle tensor) {
  Device device;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor, &device.type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor, &device.index));
  if (!device_) {
    device_ = device;
  }
  check(device.type == device_->type && device.index == device_->index, "fuseconv::", op_,
        ": all tensors must be on one device");
}

Tensor allocate(const Spec& spec, Device device) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(spec.rank, spec.sizes, spec.strides, shim_dtype(spec.dtype),
                                                  device.type, device.index, &handle));
  return Tensor(handle);
}

void* Scratch::get(size_t bytes) {
  const int64_t count = static_cast<int64_t>((bytes + sizeof(float) - 1) / sizeof(float));
  kept_.push_back(allocate(contiguous(Dtype::f32, 1, &count), device_));
  return kept_.back().mutable_data_ptr();
}

In Scratch::keep(Tensor tensor) {
  kept_.push_back(std::move(tensor));
  return view(kept_.back().get());
}

In convolution(ConvolutionShim shim, Device device, Scratch& scratch, In x, In weight, std::optional<In> bias,
               const ConvolutionParameters& p) {
  const Tensor input = borrow(x, device), filter = borrow(weight, device);
  const Tensor addend = borrow(bias.value_or(weight), device);
  AtenTensorHandle addend_handle = addend.get();
  const auto length = [](std::span<const int64_t> numbers) { return static_cast<int64_t>(numbers.size()); };
  AtenTensorHandle result;
  TORCH_ERROR_CODE_CHECK(shim(input.get(), filter.get(), bias ? &addend_handle : nullptr, p.stride.data(),
                              length(p.stride), p.padding.data(), length(p.padding), p.dilation.data(),
                              length(p.dilation), p.transposed, p.output_padding.data(), length(p.output_padding),
                              p.groups, &result));
  const In y = scratch.keep(Tensor(result));
  check(y.dtype == x.dtype,
        "fuseconv: a convolution under torch.autocast has another dtype: call the op outside of it");
  return y;
}

void linear(const GemmShims& shims, Device device, In x, In weight, std::optional<In> bias, Out y) {
  const int64_t columns = x.sizes[x.rank - 1];
  const int64_t width = weight.sizes[0];
  const int64_t rows = width == 0 ? 0 : element_count(y) / width;
  if (rows == 0) {
    return;
  }
  const Tensor x2 = flatten_rows(x, device, rows, columns);
  const Tensor w2 = borrow(weight.data, weight.dtype, device, {columns, width}, {weight.strides[1], weight.strides[0]});
  const Tensor y2 = borrow(y.data, y.dtype, device, {rows, width}, {width, 1});
  if (bias) {
    const Tensor b = borrow(bias->data, bias->dtype, device, {width}, {bias->strides[0]});
    TORCH_ERROR_CODE_CHECK(shims.addmm_out(y2.get(), b.get(), x2.get(), w2.get(), 1.0, 1.0));
  } else {
    TORCH_ERROR_CODE_CHECK(shims.mm_out(y2.get(), x2.get(), w2.get()));
  }
}

void batched_product(const GemmShims& shims, Device device, In a, In b, double scale, Out y) {
  if (element_count(y) == 0) {
    return;
  }
  const int64_t rows = y.sizes[y.rank - 2], columns = y.sizes[y.rank - 1];
  const int64_t batch = element_count(y) / (rows * columns);
  const Tensor a3 = flatten_batch(a, device, batch, false);
  const Tensor b3 = flatten_batch(b, device, batch, true);
  const Tensor y3 = borrow(y.data, y.dtype, device, {batch, rows, columns}, {rows * columns, columns, 1});
  // With beta = 0, the shim does not read the addend, so any tensor of the right shape, here y, can be passed.
  TORCH_ERROR_CODE_CHECK(shims.baddbmm_out(y3.get(), y3.get(), a3.get(), b3.get(), 0.0, scale));
}

}  // namespace fuseconv::torch_binding
