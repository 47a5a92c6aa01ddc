// The tile shapes for which linear_kernel is compiled, and their layout in shared memory.
#pragma once

#include <cstdint>

namespace fuseconv::linear::sm90 {

// What the epilogue does with x w^T + bias: applies the activation, also adds a residual before or after the
// activation, or, for a gated layer, multiplies the activation of the gate half by the up half.
enum class Form { plain, residual, gated };

// A tile is computed by one or two consumer warpgroups. Two warpgroups work either in ping-pong on whole tiles, or
// cooperatively on each tile, half of its rows each. A group computes kBands bands of 64 rows by kColumns columns;
// kStages steps of 128 bytes along k are in flight. The columns of a tile are rows of w. In a gated layer, the
// first half of them belongs to the gate projection and the second half to the up projection, so that one thread holds
// both factors of its elements of y.
//
// A warp writes y in chunks of 16 rows of at most 128 bytes, through buffers of its own. If there is a residual, TMA
// loads the chunk of the residual to the buffer first. The first chunks of a tile are loaded before its product begins,
// so a tile with a residual has more buffers, and where they need the space, one step fewer in flight.
template <class Element, bool ping_pong, int groups, int bands, int columns, int steps, Form form>
struct Tile {
  static constexpr int kElementBytes = sizeof(Element), kDepth = 128 / kElementBytes;
  static constexpr bool kPingPong = ping_pong, kGated = form == Form::gated, kResidual = form == Form::residual;
  static constexpr int kGroups = groups, kBands = bands, kColumns = columns;
  static constexpr int kRows = 64 * kBands * (kPingPong ? 1 : kGroups);
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr int kYColumns = kColumns / (kGated ? 2 : 1);
  static constexpr int kChunk = kYColumns < kDepth ? kYColumns : kDepth;
  static constexpr int kChunks = (kYColumns + kChunk - 1) / kChunk, kWarpChunks = kBands * kChunks;
  static constexpr int kBuffers = !kResidual || kWarpChunks < 2 ? 2 : kWarpChunks < 4 ? kWarpChunks : 4;
  static constexpr int kStages = kBuffers == 4 ? steps - 1 : steps;
  // Sizes and offsets in bytes. Offsets count from the first multiple of 1024.
  static constexpr uint32_t kXBytes = kRows * 128, kWBytes = kColumns * 128;
  static constexpr uint32_t kStagingBytes = 16 * kChunk * kElementBytes, kWarps = kGroups * 4;
  static constexpr uint32_t kX = 0, kW = kStages * kXBytes, kStaging = kW + kStages * kWBytes;
  static constexpr uint32_t kFull = kStaging + kWarps * kBuffers * kStagingBytes, kEmpty = kFull + kStages * 8;
  static constexpr uint32_t kLoaded = kEmpty + kStages * 8;  // a barrier for each buffer
  static constexpr uint32_t kBytes = kLoaded + kWarps * kBuffers * 8 + 1024;
  static_assert(kColumns % 16 == 0 && kColumns >= 64 && kBytes <= 227 * 1024);
};

// Ping-pong overlaps the activations of one tile with the product of the next tile. Cooperative tiles are for problems
// with about as many tiles as SMs.
template <class Element, Form form>
using PingPong128x128 = Tile<Element, true, 2, 2, 128, 6, form>;
template <class Element, Form form>
using PingPong128x160 = Tile<Element, true, 2, 2, 160, 5, form>;
template <class Element, Form form>
using PingPong128x176 = Tile<Element, true, 2, 2, 176, 5, form>;
template <class Element, Form form>
using PingPong64x128 = Tile<Element, true, 2, 1, 128, 8, form>;
// For few columns: the taller a tile is, the less often w is read.
template <class Element, Form form>
using PingPong256x64 = Tile<Element, true, 2, 4, 64, 4, form>;
template <class Element, Form form>
using Cooperative128x192 = Tile<Element, false, 2, 1, 192, 4, form>;
template <class Element, Form form>
using Cooperative64x64 = Tile<Element, false, 1, 1, 64, 12, form>;

}  // namespace fuseconv::linear::sm90
