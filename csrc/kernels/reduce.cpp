#include "kernels/reduce.h"

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/parallel.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // the minimum number of elements per thread
constexpr int64_t kChunk = 65536;  // the maximum number of elements that one task adds
constexpr int64_t kRun = 4 * kBlock;
constexpr int64_t kTerms = 16;  // terms in one partial sum of a column

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The work is cut into tasks. A task adds a chunk of the terms of each result in a tile, which contains results along
// the innermost kept axis. When reducing by rows, a tile is one result, whose terms are read in runs. When reducing by
// columns, a tile is a block of results, and term i of all of them is read before term i + 1.
template <class T>
struct Reduction {
  using A = Compute<T>;

  const ReductionLoops& loops;
  T* y;
  const T* x;
  const ReductionFormula<A>& formula;
  bool by_rows;
  int64_t tile;            // the number of results in a tile
  int64_t tiles_per_axis;  // tiles along the innermost kept axis
  int64_t tiles;
  int64_t results;
  int64_t terms;  // the number of terms in a result
  int64_t chunk;  // the number of terms in a chunk
  int64_t chunks;
  double* partial;  // [chunks, results], if there are several chunks

  Reduction(const ReductionLoops& l, T* y, const T* x, const ReductionFormula<A>& f)
      : loops(l), y(y), x(x), formula(f), results(l.kept.count()), terms(l.taken.count()), partial(nullptr) {
    const int64_t kept_size = l.kept.sizes[l.kept.rank - 1], kept_stride = l.kept.strides[1][l.kept.rank - 1];
    const int64_t taken_size = l.taken.sizes[l.taken.rank - 1], taken_stride = l.taken.strides[0][l.taken.rank - 1];
    // Runs are read along the axis with the smaller stride if both axes are long, and otherwise along the longer axis.
    const bool both_long = std::min(kept_size, taken_size) >= 32;
    by_rows = both_long ? taken_stride <= kept_stride : taken_size >= kept_size;
    tile = by_rows ? 1 : std::min(kBlock, kept_size);
    tiles_per_axis = ceil_div(kept_size, tile);
    tiles = results / kept_size * tiles_per_axis;
    chunk = kChunk / tile;
    chunks = std::max<int64_t>(1, ceil_div(terms, chunk));
  }

  // Runs tasks [begin, end). The tasks of one chunk are adjacent.
  void sum(int64_t begin, int64_t end) const {
    while (begin < end) {
      const int64_t index = begin / tiles, within = begin % tiles;
      const int64_t count = std::min(end - begin, tiles - within);
      sum_chunk(index, first_result(within), count);
      begin += count;
    }
  }

  // Adds the terms of chunk `index` for `count` tiles, starting with the tile of result `first`.
  void sum_chunk(int64_t index, int64_t first, int64_t count) const {
    double totals[kBlock];
    const int64_t start = index * chunk, stop = std::min(terms, start + chunk);
    for (Position kept(loops.kept, 2, first); count > 0; --count) {
      const int64_t n = std::min(tile, kept.left());
      std::fill_n(totals, n, 0.0);
      if (start == stop) {
        // A dim of size 0: there is nothing to add.
      } else if (by_rows) {
        add_runs(x + kept.offsets()[1], start, stop, totals);
      } else {
        add_columns(x + kept.offsets()[1], n, start, stop, totals);
      }
      if (partial != nullptr) {
        std::copy_n(totals, n, partial + index * results + first);
      } else {
        store(totals, n, kept.offsets()[0]);
      }
      first += n;
      kept.advance(n);
    }
  }

  // Computes results [begin, end) from the sums of their chunks.
  void combine(int64_t begin, int64_t end) const {
    for (Position kept(loops.kept, 2, begin); begin < end; ++begin, kept.advance(1)) {
      double total = 0;
      for (int64_t index = 0; index < chunks; ++index) {
        total += partial[index * results + begin];
      }
      store(&total, 1, kept.offsets()[0]);
    }
  }

  int64_t first_result(int64_t index) const {
    return index / tiles_per_axis * loops.kept.sizes[loops.kept.rank - 1] + index % tiles_per_axis * tile;
  }

  void add_runs(const T* row, int64_t start, int64_t stop, double* total) const {
    alignas(64) A buffer[kRun];
    const int64_t stride = loops.taken.strides[0][loops.taken.rank - 1];
    Position taken(loops.taken, 1, start);
    while (start < stop) {
      const int64_t n = std::min({stop - start, taken.left(), kRun});
      *total += formula.sum(load_block(row + taken.offsets()[0], stride, n, buffer), n);
      taken.advance(n);
      start += n;
    }
  }

  void add_columns(const T* first, int64_t n, int64_t start, int64_t stop, double* totals) const {
    alignas(64) A buffer[kBlock], sums[kBlock];
    const int64_t stride = loops.kept.strides[1][loops.kept.rank - 1];
    Position taken(loops.taken, 1, start);
    while (start < stop) {
      std::fill_n(sums, n, A(0));
      for (const int64_t next = std::min(stop, start + kTerms); start < next; ++start, taken.advance(1)) {
        formula.add(load_block(first + taken.offsets()[0], stride, n, buffer), n, sums);
      }
      for (int64_t i = 0; i < n; ++i) {
        totals[i] += sums[i];
      }
    }
  }

  void store(const double* totals, int64_t n, int64_t offset) const {
    const int64_t stride = loops.kept.strides[0][loops.kept.rank - 1];
    for (int64_t i = 0; i < n; ++i) {
      y[offset + i * stride] = narrow<T>(static_cast<A>(formula.finish(totals[i], terms)));
    }
  }
};

}  // namespace

template <class T>
void run_reduction(CpuHost& host, const ReductionLoops& loops, void* y, const void* x,
                   const ReductionFormula<Compute<T>>& formula) {
  if (loops.kept.count() == 0) {
    return;
  }
  Reduction<T> reduction(loops, static_cast<T*>(y), static_cast<const T*>(x), formula);
  Buffer<double> partial(reduction.chunks > 1 ? reduction.chunks * reduction.results : 0);
  if (reduction.chunks > 1) {
    reduction.partial = partial.data();
  }
  const int64_t elements = reduction.tile * std::min(reduction.chunk, reduction.terms) + 1;
  parallel(host, reduction.tiles * reduction.chunks, std::max<int64_t>(1, kGrain / elements),
           [&](int64_t begin, int64_t end) { reduction.sum(begin, end); });
  if (reduction.chunks > 1) {
    parallel(host, reduction.results, std::max<int64_t>(1, kGrain / reduction.chunks),
             [&](int64_t begin, int64_t end) { reduction.combine(begin, end); });
  }
}

template void run_reduction<float>(CpuHost&, const ReductionLoops&, void*, const void*, const ReductionFormula<float>&);
template void run_reduction<double>(CpuHost&, const ReductionLoops&, void*, const void*,
                                    const ReductionFormula<double>&);
template void run_reduction<f16>(CpuHost&, const ReductionLoops&, void*, const void*, const ReductionFormula<float>&);
template void run_reduction<bf16>(CpuHost&, const ReductionLoops&, void*, const void*, const ReductionFormula<float>&);

}  // namespace FUSECONV_ISA
}  // namespace fuseconv
