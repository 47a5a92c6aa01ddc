// The exception for a cuDNN call that returns an error.
#pragma once

#include <stdexcept>

namespace fuseconv::cudnn {

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fuseconv::cudnn
