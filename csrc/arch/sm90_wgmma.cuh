// Hopper's wgmma instructions (PTX ISA 8.0, sm_90a). A warpgroup multiplies a tile of 64 rows and accumulates in f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fuseconv::arch::sm90 {

// Returns the descriptor of a tile with 128 bytes per row, the 128-byte swizzle, and rows in groups of 8 (1024 bytes).
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

// Returns the descriptor of a tile whose rows are along k ("MN-major"): in each row 64 columns, 128 bytes, with the
// 128-byte swizzle, and rows in groups of 8. The next 64 columns are `next` bytes behind these.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address, uint32_t next) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{next >> 4} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keep the compiler from moving computations with these registers across this place.
template <int kCount>
__device__ __forceinline__ void hold(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(registers[i])::"memory");
  }
}
template <int kCount>
__device__ __forceinline__ void hold(uint32_t (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kCount; ++i) {
    asm volatile("" : "+r"(registers[i / 4][i % 4])::"memory");
  }
}

template <class T>
inline constexpr bool is_bf16 = false;
template <>
inline constexpr bool is_bf16<__nv_bfloat16> = true;

// The asm operands of the accumulators for a number of columns: the operand numbers, ten at a time, and the
// accumulators, eight at a time.
#define TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define NUMBERS_60 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) TEN(4) TEN(5)
#define NUMBERS_64 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) "%30,%31"
#define NUMBERS_96 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) "%40,%41,%42,%43,%44,%45,%46,%47"
#define NUMBERS_112 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9," TEN(1) TEN(2) TEN(3) TEN(4) "%50,%51,%52,%53,%54,%55"
#define NUMBERS_128 NUMBERS_60 "%60,%61,%62,%63"
#define NUMBERS_160 NUMBERS_60 TEN(6) "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define NUMBERS_176 NUMBERS_60 TEN(6) TEN(7) "%80,%81,%82,%83,%84,%85,%86,%87"
#define NUMBERS_192 NUMBERS_60 TEN(6) TEN(7) TEN(8) "%90,%91,%92,%93,%94,%95"
#define NUMBERS_256 NUMBERS_60 TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"
#define D8(i)                                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define D_64 D32(0)
#define D_96 D32(0), D8(32), D8(40)
#define D_112 D32(0), D8(32), D8(40), D8(48)
#define D_128 D32(0), D32(32)
#define D_160 D32(0), D32(32), D8(64), D8(72)
#define D_176 D32(0), D32(32), D8(64), D8(72), D8(80)
#define D_192 D32(0), D32(32), D32(64)
#define D_256 D32(0), D32(32), D32(64), D32(96)

// `operands` gives the operand numbers of the two factors, and `add` the operand number of `accumulate`. `majors` gives
// the transpose flags of the factors in shared memory: 0 (K-major) or 1 (MN-major).
#define WGMMA(columns, types, operands, add, majors, ...)                                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns types \
               " {" NUMBERS_##columns "}, " operands ", p, 1, 1" majors ";\n}"                                  \
               : D_##columns                                                                                    \
               : __VA_ARGS__)
#define WGMMA_16(columns, operands, add, majors, ...)                          \
  if constexpr (kColumns == columns) {                                         \
    if constexpr (is_bf16<Element>) {                                          \
      WGMMA(columns, "k16.f32.bf16.bf16", operands, add, majors, __VA_ARGS__); \
    } else {                                                                   \
      WGMMA(columns, "k16.f32.f16.f16", operands, add, majors, __VA_ARGS__);   \
    }                                                                          \
  }
#define IN_SHARED "l"(a), "l"(b), "r"(accumulate)
#define IN_REGISTERS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)

// Does the same as wgmma_wait, but takes the accumulators as operands, so that the compiler does not read them earlier.
template <int kPending>
__device__ __forceinline__ void wgmma_wait(float (&d)[32]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned %32;" : D_64 : "n"(kPending) : "memory");
#endif
}

// d[64, kColumns] += a[64, 16] b[kColumns, 16]^T with both factors in shared memory.
template <class Element, int kColumns>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], uint64_t a, uint64_t b, int accumulate) {
  static_assert(sizeof(Element) == 2);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WGMMA_16(64, "%32, %33", "%34", ", 0, 0", IN_SHARED)
  WGMMA_16(96, "%48, %49", "%50", ", 0, 0", IN_SHARED)
  WGMMA_16(112, "%56, %57", "%58", ", 0, 0", IN_SHARED)
  WGMMA_16(128, "%64, %65", "%66", ", 0, 0", IN_SHARED)
  WGMMA_16(160, "%80, %81", "%82", ", 0, 0", IN_SHARED)
  WGMMA_16(176, "%88, %89", "%90", ", 0, 0", IN_SHARED)
  WGMMA_16(192, "%96, %97", "%98", ", 0, 0", IN_SHARED)
#endif
}

// d[64, kColumns] += a[64, 8] b[kColumns, 8]^T in TF32 with both factors in shared memory.
template <int kColumns>
__device__ __forceinline__ void wgmma_tf32(float (&d)[kColumns / 2], uint64_t a, uint64_t b, int accumulate) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (kColumns == 64) {
    WGMMA(64, "k8.f32.tf32.tf32", "%32, %33", "%34", "", IN_SHARED);
  } else if constexpr (kColumns == 128) {
    WGMMA(128, "k8.f32.tf32.tf32", "%64, %65", "%66", "", IN_SHARED);
  } else {
    static_assert(kColumns == 192);
    WGMMA(192, "k8.f32.tf32.tf32", "%96, %97", "%98", "", IN_SHARED);
  }
#endif
}

// d[64, kColumns] += a[64, 16] b[kColumns, 16]^T with a in registers and b in shared memory.
template <class Element, int kColumns>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  static_assert(sizeof(Element) == 2);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WGMMA_16(64, "{%32,%33,%34,%35}, %36", "%37", ", 0", IN_REGISTERS)
  WGMMA_16(128, "{%64,%65,%66,%67}, %68", "%69", ", 0", IN_REGISTERS)
  WGMMA_16(256, "{%128,%129,%130,%131}, %132", "%133", ", 0", IN_REGISTERS)
#endif
}

// d[64, kColumns] += a[64, 16] b[16, kColumns] with a in registers and b in shared memory, as rows_descriptor
// describes.
template <class Element, int kColumns>
__device__ __forceinline__ void wgmma_rows(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b,
                                           int accumulate) {
  static_assert(sizeof(Element) == 2);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WGMMA_16(64, "{%32,%33,%34,%35}, %36", "%37", ", 1", IN_REGISTERS)
  WGMMA_16(128, "{%64,%65,%66,%67}, %68", "%69", ", 1", IN_REGISTERS)
#endif
}

// d[64, 64] += a[64, 8] b[64, 8]^T in TF32 with a in registers and b in shared memory.
__device__ __forceinline__ void wgmma_tf32(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  WGMMA(64, "k8.f32.tf32.tf32", "{%32,%33,%34,%35}, %36", "%37", "", IN_REGISTERS);
#endif
}

#undef IN_REGISTERS
#undef IN_SHARED
#undef WGMMA_16
#undef WGMMA
#undef D_256
#undef D_192
#undef D_176
#undef D_160
#undef D_128
#undef D_64
#undef D32
#undef D8
#undef NUMBERS_256
#undef NUMBERS_192
#undef NUMBERS_176
#undef NUMBERS_160
#undef NUMBERS_128
#undef NUMBERS_64
#undef NUMBERS_60
#undef TEN

}  // namespace fuseconv::arch::sm90
