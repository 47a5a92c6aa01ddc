#include "kernels/dense_convolution.h"

#include <algorithm>

#include "core/cuda.cuh"
#include "core/layout.h"
#include "cudnn/convolution.h"
#include "gemm/choices.h"
#include "gemm/pass.h"
#include "kernels/images.h"
#include "kernels/implicit_gemm.h"
#include "tuning/process.h"

namespace fuseconv::cuda {
namespace {

constexpr int64_t kLeastChannels = 4;  // per group; cuDNN is slow with fewer

// With more elements, cuDNN's engines fail or read wrong addresses.
bool is_small(In tensor) { return element_count(tensor) < (int64_t{1} << 31); }

// Returns whether to use these kernels. cuDNN without fusion is faster for other layouts, and ten times as fast for
// depthwise convolutions.
bool supports(const Convolution& c) {
  const int64_t groups = c.parameters.groups;
  return c.y.dtype != Dtype::f64 && fits_channels_last(c.y) && !c.parameters.transposed &&
         (groups == 1 || c.weight.sizes[1] >= kLeastChannels) && is_small(c.x) && is_small(c.y) &&
         (!c.bias || (c.bias->strides[0] == 1 && is_aligned(c.bias->data)));
}

// cuDNN's way to compute a convolution: an engine, which may compute a part of the epilogue, and a pass for the rest.
class ByCudnn {
 public:
  ByCudnn(CudaHost& host, const Convolution& convolution, const linear::Problem& layer)
      : host_(host), convolution_(convolution), rest_(layer) {}

  // Selects an engine. Returns false if cuDNN has none.
  bool prepare(bool may_time) {
    if (call_) {
      return true;
    }
    const Convolution& c = convolution_;
    const bool adds = c.residual && (c.residual_first || c.activation == Activation::none);
    const bool activates = c.activation == Activation::relu && (!c.residual || adds);
    cudnn::Problem problem{laid_out(host_, c.x, x_),
                           laid_out(host_, c.weight, weight_),
                           c.bias,
                           adds ? c.residual : std::nullopt,
                           c.parameters,
                           activates,
                           c.y};
    call_ = cudnn::prepare(host_, problem, may_time);
    if (!call_ && activates) {
      problem.relu = false;
      call_ = cudnn::prepare(host_, problem, may_time);
    }
    if (!call_) {
      return false;
    }
    rest_.bias = nullptr;
    rest_.residual = adds ? nullptr : rest_.residual;
    rest_.activation = problem.relu ? Activation() : rest_.activation;
    return true;
  }

  void run(void* stream) {
    cudnn::run(*call_, stream);
    if (rest_.residual != nullptr || rest_.activation != Activation::none) {
      rest_.stream = stream;
      linear::pass(rest_);
    }
  }

 private:
  CudaHost& host_;
  const Convolution& convolution_;
  linear::Problem rest_;
  Spec x_, weight_;
  std::optional<cudnn::Call> call_;
};

// The `product` of a linear::Problem.
void run_cudnn(void* context, void* stream, void*) { static_cast<ByCudnn*>(context)->run(stream); }

// Runs a convolution in the fastest way. Returns false if there is none. cuDNN's engines are timed first, and this
// library's kernel then against the fastest of them.
bool run_fastest(CudaHost& host, const Convolution& c, linear::Problem& p, ByCudnn& by_cudnn) {
  using linear::Backend;
  const bool may_time = tuning::may_time();
  const bool has_kernel = linear::refuses(Backend::sm90, p).empty() || linear::refuses(Backend::tf32x3, p).empty();
  if (!has_kernel && p.product == nullptr) {
    return false;
  }
  linear::Choice choice{Backend::cudnn, 0};
  if (has_kernel) {
    if (may_time) {
      set_operands(host, c, p);
      p.product = p.product != nullptr && by_cudnn.prepare(true) ? p.product : nullptr;
    }
    choice = linear::Choices::of_process().choose(p, may_time);
  }
  if (choice.backend == Backend::cudnn && !by_cudnn.prepare(may_time)) {
    if (!has_kernel) {
      return false;
    }
    p.product = nullptr;
    choice = linear::Choices::of_process().choose(p, may_time);
  }
  if (choice.backend != Backend::cudnn) {
    set_operands(host, c, p);
  }
  linear::run(p, choice);
  return true;
}

}  // namespace

bool dense_convolution(CudaHost& host, const Convolution& given) {
  if (!supports(given)) {
    return false;
  }
  Images images(given);
  Convolution& c = images.convolution;
  Spec residual;
  if (c.residual) {
    c.residual = laid_out(host, *c.residual, residual);
  }
  linear::Problem p = problem_of(c);
  ByCudnn by_cudnn(host, c, p);
  p.product_version = cudnn::version();
  p.product = p.product_version > 0 && p.element != Dtype::f32 ? run_cudnn : nullptr;
  p.context = &by_cudnn;
  p.stream = host.stream();
  try {
    return run_fastest(host, c, p, by_cudnn);
  } catch (const cudnn::Refused&) {
    return false;  // an engine that cuDNN proposed and created does not run; `prepare` will not return it again
  }
}

}  // namespace fuseconv::cuda
