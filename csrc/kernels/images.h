// Views a 1-D convolution as a 2-D convolution.
#pragma once

#include <array>
#include <span>

#include "kernels/convolution.h"

namespace fuseconv::cuda {

// A convolution, in which the images of a 1-D convolution have become 2-D images with one row.
class Images {
 public:
  explicit Images(const Convolution& given) : convolution(given) {
    Convolution& c = convolution;
    if (c.x.rank != 3) {
      return;
    }
    insert(c.x, shapes_[0]);
    insert(c.weight, shapes_[1]);
    insert(c.y, shapes_[2]);
    if (c.residual) {
      insert(*c.residual, shapes_[3]);
    }
    const auto numbers = [&](std::span<const int64_t>& given, int64_t first, std::array<int64_t, 2>& all) {
      all = {first, given[0]};
      given = all;
    };
    numbers(c.parameters.stride, 1, numbers_[0]);
    numbers(c.parameters.padding, 0, numbers_[1]);
    numbers(c.parameters.padding_after, 0, numbers_[2]);
    numbers(c.parameters.dilation, 1, numbers_[3]);
  }
  Images(const Images&) = delete;
  Images& operator=(const Images&) = delete;

  Convolution convolution;

 private:
  struct Shape {
    int64_t sizes[4], strides[4];
  };

  template <class Tensor>
  static void insert(Tensor& tensor, Shape& shape) {
    shape = {{tensor.sizes[0], tensor.sizes[1], 1, tensor.sizes[2]},
             {tensor.strides[0], tensor.strides[1], tensor.sizes[2] * tensor.strides[2], tensor.strides[2]}};
    tensor.rank = 4;
    tensor.sizes = shape.sizes;
    tensor.strides = shape.strides;
  }

  Shape shapes_[4];
  std::array<int64_t, 2> numbers_[4];
};

}  // namespace fuseconv::cuda
