// The arguments of a norm's kernels.
#pragma once

#include "kernels/moments.cuh"
#include "kernels/norm.h"

namespace fuseconv::cuda {

template <class T>
struct NormArguments {
  Loop rows;  // operands: y, x, residual, sum
  int64_t row_count;
  int64_t columns;
  int64_t column_strides[4];
  int64_t weight_stride;
  int64_t bias_stride;
  T* y;
  const T* x;
  const T* residual;  // residual, sum, weight and bias may be null
  T* sum;
  const T* weight;
  const T* bias;
  RowNorm<T> norm;
  bool large;  // whether the result is larger than L2
  Activation activation;
};

template <class T>
NormArguments<T> arguments_of(const Norm& norm) {
  // In the loop, x takes the place of missing operands. Their pointers stay null.
  const In operands[4] = {norm.y, norm.x, norm.residual ? *norm.residual : norm.x, norm.sum ? In(*norm.sum) : norm.x};
  const auto data = [](const std::optional<In>& tensor) {
    return tensor ? static_cast<const T*>(tensor->data) : nullptr;
  };
  NormArguments<T> a{};
  a.rows = row_loop(operands, 4);
  a.row_count = a.rows.count();
  a.columns = norm.x.sizes[norm.x.rank - 1];
  for (int operand = 0; operand < 4; ++operand) {
    a.column_strides[operand] = operands[operand].strides[operands[operand].rank - 1];
  }
  a.weight_stride = norm.weight ? norm.weight->strides[0] : 1;
  a.bias_stride = norm.bias ? norm.bias->strides[0] : 1;
  a.y = static_cast<T*>(norm.y.data);
  a.x = static_cast<const T*>(norm.x.data);
  a.residual = data(norm.residual);
  a.sum = norm.sum ? static_cast<T*>(norm.sum->data) : nullptr;
  a.weight = data(norm.weight);
  a.bias = data(norm.bias);
  a.norm = RowNorm<T>(a.columns, norm.eps, norm.centred);
  a.activation = norm.activation;
  a.large = is_large(element_count(norm.x) * sizeof(T));
  return a;
}

}  // namespace fuseconv::cuda
