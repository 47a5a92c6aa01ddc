// The code that the CPU and the CUDA library for torch share: it converts tensors to views for the kernels, runs an op,
// and calls torch's GEMM and convolution. Uses only the LibTorch stable ABI, so that one build works with every torch
// from 2.10 on.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/host.h"
#include "core/layout.h"
#include "core/op.h"
#include "core/tensor_view.h"

namespace fuseconv::torch_binding {

using torch::stable::Tensor;

int32_t shim_dtype(Dtype dtype);

In view(AtenTensorHandle tensor);
Out writable(const Tensor& tensor);

struct Device {
  int32_t type;
  int32_t index;
};

// Determines the device of a call: the device of the first tensor. Throws if another tensor is on another device.
class CommonDevice {
 public:
  explicit CommonDevice(const char* op) : op_(op) {}
  void add(AtenTensorHandle tensor);
  Device get() const { return *device_; }

 private:
  const char* op_;
  std::optional<Device> device_;
};

Tensor allocate(const Spec& spec, Device device);

// Implements Host::scratch with tensors from torch's allocator. The buffers live as long as this object, which lives
// until the end of the call.
class Scratch {
 public:
  explicit Scratch(Device device) : device_(device) {}
  void* get(size_t bytes);
  In keep(Tensor tensor);

 private:
  Device device_;
  std::vector<Tensor> kept_;
};

// Pointers to the C shims of aten::addmm.out, aten::mm.out and aten::baddbmm.out for one device. The shims bypass
// autograd and autocast.
struct GemmShims {
  AOTITorchError (*addmm_out)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double, double);
  AOTITorchError (*mm_out)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle);
  AOTITorchError (*baddbmm_out)(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, double, double);
};

// Implements Host::linear with these shims: computes the same as aten::linear, but writes into an existing tensor y.
// The weight is passed with its strides, without a copy.
void linear(const GemmShims& shims, Device device, In x, In weight, std::optional<In> bias, Out y);

// Implements Host::batched_product with these shims.
void batched_product(const GemmShims& shims, Device device, In a, In b, double scale, Out y);

// A pointer to the C shim of aten::convolution for one device. The shim bypasses autograd and autocast.
using ConvolutionShim = decltype(&aoti_torch_cpu_convolution);

// Implements Host::convolution with this shim. The tensors are passed with their strides, without a copy.
In convolution(ConvolutionShim shim, Device device, Scratch& scratch, In x, In weight, std::optional<In> bias,
               const ConvolutionParameters& parameters);

// Allocates the results of an op, runs the op, and returns the results. `invoke(device, run)` must create the host of
// the call and return run(host).
template <class Op, class Kernel, class Invoke>
std::array<Tensor, kResults<Op>> run(Kernel kernel, Invoke invoke, Device device, const typename Op::Args& args) {
  const std::array<Spec, kResults<Op>> specs = Op::outputs(args);
  return invoke(device, [&](auto& host) {
    return [&]<size_t... O>(std::index_sequence<O...>) {
      const std::array<Tensor, kResults<Op>> results{allocate(specs[O], device)...};
      kernel(host, args, {writable(results[O])...});
      return results;
    }(std::make_index_sequence<kResults<Op>>());
  });
}

}  // namespace fuseconv::torch_binding
