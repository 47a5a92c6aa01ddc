// Hopper's own instructions, one function each: mbarrier, bulk tensor copies, wgmma (PTX ISA 8.0, sm_90a).
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fuseconv::linear::sm90 {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the same barrier of block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters and programmatic launch

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Orders barrier initialisation (with its fence) and exits; no other memory.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The grids before this one in the stream have ended and their writes are visible.
__device__ __forceinline__ void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The grid after this one may start its blocks as soon as there is room.
__device__ __forceinline__ void allow_next_grid() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- bulk tensor copies; coordinates are (column, row)

__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// To the same address of every block of the cluster in `blocks`, each block's own barrier counting its bytes.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier,
                                         uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\ncp.async.bulk.commit_group;" ::"l"(
          &map),
      "r"(from), "r"(column), "r"(row)
      : "memory");
}

// All but the last kPending stores of this thread have read their shared memory.
template <int kPending>
__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Shared memory written by this thread is visible to the copy engine.
__device__ __forceinline__ void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- warpgroups

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_wait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// ---- wgmma: d[64, kColumns] += a[64, 16] b[kColumns, 16]^T, both in shared memory, f32 accumulators

// A tile of 64 16-bit columns (128 bytes a row), swizzled by 128 bytes, rows in groups of 8 (1024 bytes).
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The operands' numbers and the accumulators themselves, ten and eight at a time.
#define TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define FIRST_TEN "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,"
#define D8(i)                                                                                                 \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define D32(i) D8(i), D8(i + 8), D8(i + 16), D8(i + 24)
#define WGMMA(columns, type, list, a, b, add, ...)                                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns \
               "k16.f32." type "." type " {" list "}, " a ", " b ", p, 1, 1, 0, 0;\n}"                    \
               : __VA_ARGS__                                                                              \
               : "l"(x), "l"(w), "r"(accumulate))
#define WGMMA_COLUMNS(count, ...)                            \
  if constexpr (sizeof(Element) == 2 && kColumns == count) { \
    if constexpr (kIsBf16) {                                 \
      WGMMA(count, "bf16", __VA_ARGS__);                     \
    } else {                                                 \
      WGMMA(count, "f16", __VA_ARGS__);                      \
    }                                                        \
  }

template <class T>
inline constexpr bool is_bf16 = false;
template <>
inline constexpr bool is_bf16<__nv_bfloat16> = true;

template <class Element, int kColumns>
__device__ __forceinline__ void wgmma(float (&d)[kColumns / 2], uint64_t x, uint64_t w, int accumulate) {
  constexpr bool kIsBf16 = is_bf16<Element>;
  WGMMA_COLUMNS(64, FIRST_TEN TEN(1) TEN(2) "%30,%31", "%32", "%33", "%34", D32(0))
  WGMMA_COLUMNS(128, FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60,%61,%62,%63", "%64", "%65", "%66", D32(0),
                D32(32))
  WGMMA_COLUMNS(160, FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) "%70,%71,%72,%73,%74,%75,%76,%77,%78,%79",
                "%80", "%81", "%82", D32(0), D32(32), D8(64), D8(72))
  WGMMA_COLUMNS(176, FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) "%80,%81,%82,%83,%84,%85,%86,%87",
                "%88", "%89", "%90", D32(0), D32(32), D8(64), D8(72), D8(80))
  WGMMA_COLUMNS(192, FIRST_TEN TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90,%91,%92,%93,%94,%95", "%96",
                "%97", "%98", D32(0), D32(32), D32(64))
}

#undef WGMMA_COLUMNS
#undef WGMMA
#undef D32
#undef D8
#undef FIRST_TEN
#undef TEN

// ---- 16-bit pairs

__device__ __forceinline__ uint32_t pack(float low, float high, __nv_bfloat16) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ uint32_t pack(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

__device__ __forceinline__ float2 unpack(uint32_t pair, __nv_bfloat16) {
  return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
}

__device__ __forceinline__ float2 unpack(uint32_t pair, __half) {
  return __half22float2(reinterpret_cast<const __half2&>(pair));
}

// Two elements, 4-byte aligned, or zeros; without a branch.
__device__ __forceinline__ uint32_t load_pair(const void* at, bool inside) {
  uint32_t pair;
  asm("{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@p ld.global.b32 %0, [%1];\n"
      "}"
      : "=r"(pair)
      : "l"(at), "r"(static_cast<int>(inside)));
  return pair;
}

}  // namespace fuseconv::linear::sm90
