// Hopper instructions, one function each: mbarrier, clusters, TMA, warpgroups (PTX ISA 8.0, sm_90a).
#pragma once

#include <cuda.h>

#include "arch/sm80.cuh"

namespace fuseconv::arch::sm90 {

using sm80::load_matrices;
using sm80::shared_address;

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

// Arrives at the barrier `count` times at once.
__device__ __forceinline__ void barrier_arrive_many(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Arrives at the barrier at the same address in block `rank` of the cluster.
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

// Does the same as barrier_wait if `wait` is true, and nothing otherwise.
__device__ __forceinline__ void barrier_wait_if(bool wait, uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred wanted, done;\n"
      "setp.ne.b32 wanted, %2, 0;\n"
      "@!wanted bra over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "over:\n"
      "}" ::"r"(barrier),
      "r"(parity), "r"(static_cast<int>(wait))
      : "memory");
}

// ---- clusters and programmatic launch

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Waits for all blocks of the cluster. Orders only the initialization of barriers (with its fence) and the exit of
// blocks, and no other memory accesses.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Waits until the preceding grids in the stream have ended and their writes are visible (PDL: griddepcontrol.wait).
__device__ __forceinline__ void wait_for_previous_grid() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Allows the blocks of the next grid in the stream to start as soon as there is room for them (PDL: launch_dependents).
__device__ __forceinline__ void launch_dependent_grids() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// ---- TMA; coordinates are (column, row), and (column, position, row) of a box of one position

__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// Multicasts the box to the same address in every block of the cluster that the bit mask `blocks` selects. Each block's
// own barrier counts the bytes that the block receives.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier,
                                         uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int column, int position, int row,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(position), "r"(row), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, int column, int position, int row,
                                         uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(&map), "r"(column), "r"(position), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

// Loads a box of a tensor of five dims. Coordinates are innermost first.
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, const int (&at)[5], uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
      "l"(&map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(barrier)
      : "memory");
}

// A pixel of a batch of images [image][y][x][channel].
struct Pixel {
  int x, y, image;
};

// Loads the same channels of many positions of sequences [image][x][channel], as rows of a tile (im2col mode).
__device__ __forceinline__ void load_positions(uint32_t to, const CUtensorMap& map, int channel, Pixel first, int right,
                                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5], {%6};" ::"r"(to),
      "l"(&map), "r"(channel), "r"(first.x), "r"(first.image), "r"(barrier), "h"(static_cast<uint16_t>(right))
      : "memory");
}

__device__ __forceinline__ void load_positions(uint32_t to, const CUtensorMap& map, int channel, Pixel first, int right,
                                               uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4}], [%5], {%6}, %7;" ::"r"(to),
      "l"(&map), "r"(channel), "r"(first.x), "r"(first.image), "r"(barrier), "h"(static_cast<uint16_t>(right)),
      "h"(blocks)
      : "memory");
}

// Loads the same channels of many pixels, as rows of a tile (im2col mode). `first` is the first pixel of the first
// window; the map contains the steps from window to window. The pixels are (right, down) of the first ones of their
// windows.
__device__ __forceinline__ void load_pixels(uint32_t to, const CUtensorMap& map, int channel, Pixel first, int right,
                                            int down, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to),
      "l"(&map), "r"(channel), "r"(first.x), "r"(first.y), "r"(first.image), "r"(barrier),
      "h"(static_cast<uint16_t>(right)), "h"(static_cast<uint16_t>(down))
      : "memory");
}

__device__ __forceinline__ void load_pixels(uint32_t to, const CUtensorMap& map, int channel, Pixel first, int right,
                                            int down, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;" ::"r"(to),
      "l"(&map), "r"(channel), "r"(first.x), "r"(first.y), "r"(first.image), "r"(barrier),
      "h"(static_cast<uint16_t>(right)), "h"(static_cast<uint16_t>(down)), "h"(blocks)
      : "memory");
}

// Does the same for images whose channels are in groups, of which each has a dim of the map to itself.
__device__ __forceinline__ void load_pixels(uint32_t to, const CUtensorMap& map, int channel, Pixel first, int group,
                                            int right, int down, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(to),
      "l"(&map), "r"(channel), "r"(first.x), "r"(first.y), "r"(first.image), "r"(group), "r"(barrier),
      "h"(static_cast<uint16_t>(right)), "h"(static_cast<uint16_t>(down)), "h"(static_cast<uint16_t>(0))
      : "memory");
}

__device__ __forceinline__ void load_pixels(uint32_t to, const CUtensorMap& map, int channel, Pixel first, int group,
                                            int right, int down, uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10}, %11;" ::"r"(to),
      "l"(&map), "r"(channel), "r"(first.x), "r"(first.y), "r"(first.image), "r"(group), "r"(barrier),
      "h"(static_cast<uint16_t>(right)), "h"(static_cast<uint16_t>(down)), "h"(static_cast<uint16_t>(0)), "h"(blocks)
      : "memory");
}

// Loads the same channels of all pixels of a box of images. `first` is the first pixel.
__device__ __forceinline__ void load_images(uint32_t to, const CUtensorMap& map, int channel, Pixel first,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(channel), "r"(first.x), "r"(first.y), "r"(first.image), "r"(barrier)
      : "memory");
}

// Stores a box of images. Pixels and channels that the images do not have are not written.
__device__ __forceinline__ void store_images(const CUtensorMap& map, uint32_t from, int channel, Pixel first) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(from), "r"(channel), "r"(first.x), "r"(first.y), "r"(first.image)
      : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\ncp.async.bulk.commit_group;" ::"l"(
          &map),
      "r"(from), "r"(column), "r"(row)
      : "memory");
}

// Stores a box of a tensor of five dims. Elements outside the tensor are not written.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, const int (&at)[5]) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(from), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
      : "memory");
}

// Waits until all stores of this thread except the last kPending have read their shared memory.
template <int kPending>
__device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Copies from this block's shared memory to the same address in block `rank` of the cluster. The barrier of block
// `rank` counts the bytes.
__device__ __forceinline__ void copy_to_block(uint32_t from, uint32_t bytes, uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 to, remote;\n"
      "mapa.shared::cluster.u32 to, %0, %3;\n"
      "mapa.shared::cluster.u32 remote, %2, %3;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [to], [%0], %1, [remote];\n"
      "}" ::"r"(from),
      "r"(bytes), "r"(barrier), "r"(rank)
      : "memory");
}

// Makes this thread's writes to shared memory visible to TMA.
__device__ __forceinline__ void shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// ---- warpgroups

template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void named_barrier_wait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ float load_shared(uint32_t at) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
  return x;
}

__device__ __forceinline__ float2 load_shared_pair(uint32_t at) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(at) : "memory");
  return pair;
}

__device__ __forceinline__ void store_shared_pair(uint32_t at, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(pair.x), "f"(pair.y) : "memory");
}

// Stores four 8x8 matrices of 16-bit elements. Lane l passes the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

}  // namespace fuseconv::arch::sm90
