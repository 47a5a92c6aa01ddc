// A scratch buffer for a kernel, aligned to a cache line and uninitialized. Compiled once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "core/isa.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {

// Owns memory for n values of type A.
template <class A>
class Buffer {
 public:
  explicit Buffer(int64_t n) : data_(static_cast<A*>(::operator new(n * sizeof(A), std::align_val_t(64)))) {}
  ~Buffer() { ::operator delete(data_, std::align_val_t(64)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  A* data() { return data_; }

 private:
  A* data_;
};

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
