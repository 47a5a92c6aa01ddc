// Computes SHA-256 hashes (FIPS 180-4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fuseconv::runtime {

class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  // Returns the hexadecimal digest of all added data. May be called once, and no data may be added afterwards.
  std::string digest();

 private:
  void compress(const uint8_t* block);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t bytes_ = 0;
  uint8_t rest_[64];
};

}  // namespace fuseconv::runtime
