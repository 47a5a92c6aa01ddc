#include "kernels/reduce.h"

#include <algorithm>

#include "kernels/block.h"
#include "kernels/buffer.h"
#include "kernels/matrix_copy.h"
#include "kernels/parallel.h"
#include "kernels/position.h"

namespace fuseconv {
inline namespace FUSECONV_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // the minimum number of elements per thread
constexpr int64_t kChunk = 65536;  // the maximum number of elements that one task adds
constexpr int64_t kRun = 4 * kBlock;
constexpr int64_t kTerms = 16;  // terms in one partial sum of a column
constexpr int64_t kTile = 1024;
constexpr int64_t kLong = 32;  // a run of fewer elements is short

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the second axis of a tile of results, or -1. It is the axis along which the results are dense, or, if the
// runs along the innermost axis are short, the next one.
int second_axis(const Loop& kept) {
  const int inner = kept.rank - 1;
  for (int axis = inner - 1; kept.strides[0][inner] != 1 && axis >= 0; --axis) {
    if (kept.strides[0][axis] == 1) {
      return axis;
    }
  }
  return kept.sizes[inner] < 2 * kLong ? inner - 1 : -1;
}

// The work is cut into tasks. A task adds a chunk of the terms of each result in a tile, which contains results along
// the innermost kept axis and sometimes along a second one. When reducing by rows, the terms of a result are read in
// runs. When reducing by columns, term i of all results of the tile is read before term i + 1.
template <class T>
struct Reduction {
  using A = Compute<T>;

  const ReductionLoops& loops;
  T* y;
  const T* x;
  const ReductionFormula<A>& formula;
  int second;             // the second axis of a tile
  int64_t rows, columns;  // of a tile: results along the second and along the innermost kept axis
  bool by_rows;
  Loop tiles;     // its steps are tiles
  int64_t count;  // the number of tiles
  int64_t terms;  // the number of terms in a result
  int64_t chunk;  // the number of terms in a chunk
  int64_t chunks;
  double* partial;  // [chunks, count, rows, columns], if there are several chunks

  Reduction(const ReductionLoops& l, T* y, const T* x, const ReductionFormula<A>& f)
      : loops(l),
        y(y),
        x(x),
        formula(f),
        second(second_axis(l.kept)),
        tiles(l.kept),
        terms(l.taken.count()),
        partial(nullptr) {
    const int inner = l.kept.rank - 1;
    const int64_t kept_size = l.kept.sizes[inner], kept_stride = l.kept.strides[1][inner];
    const int64_t taken_size = l.taken.sizes[l.taken.rank - 1], taken_stride = l.taken.strides[0][l.taken.rank - 1];
    columns = std::min(second < 0 ? kBlock : 2 * kLong, kept_size);
    rows = second < 0 ? 1 : std::min(kTile / columns, l.kept.sizes[second]);
    // Runs are read along the axis with the smaller stride if both are long and neither is expanded, and otherwise
    // along the longer axis.
    const bool by_stride = std::min(rows * columns, taken_size) >= kLong && taken_stride != 0 && kept_stride != 0;
    by_rows = by_stride ? taken_stride <= kept_stride : taken_size >= rows * columns;
    if (by_rows) {
      rows = 1;
      columns = std::clamp<int64_t>(kRun / std::max<int64_t>(terms, 1), 1, columns);
    }
    cut(inner, columns);
    if (rows > 1) {
      cut(second, rows);
    }
    count = tiles.count();
    chunk = by_rows ? kChunk : kChunk / (rows * columns);
    chunks = std::max<int64_t>(1, ceil_div(terms, chunk));
  }

  void cut(int axis, int64_t size) {
    tiles.sizes[axis] = ceil_div(tiles.sizes[axis], size);
    tiles.strides[0][axis] *= size;
    tiles.strides[1][axis] *= size;
  }

  // Runs tasks [begin, end). The tasks of one chunk are adjacent.
  void sum(int64_t begin, int64_t end) const {
    while (begin < end) {
      const int64_t index = begin / count, first = begin % count, last = std::min(first + end - begin, count);
      const int64_t start = index * chunk, stop = std::min(terms, start + chunk);
      each_tile(first, last, [&](int64_t tile, const int64_t* offsets, int64_t height, int64_t width) {
        double own[kTile];
        double* const totals = partial == nullptr ? own : partial + (index * count + tile) * rows * columns;
        std::fill_n(totals, height * width, 0.0);
        if (start == stop) {
          // A dim of size 0: there is nothing to add.
        } else if (by_rows) {
          add_runs(x + offsets[1], width, start, stop, totals);
        } else {
          add_columns(x + offsets[1], height, width, start, stop, totals);
        }
        if (partial == nullptr) {
          store(totals, offsets[0], height, width);
        }
      });
      begin += last - first;
    }
  }

  // Computes the results of tiles [begin, end) from the sums of their chunks.
  void combine(int64_t begin, int64_t end) const {
    each_tile(begin, end, [&](int64_t tile, const int64_t* offsets, int64_t height, int64_t width) {
      double totals[kTile] = {};
      for (int64_t index = 0; index < chunks; ++index) {
        for (int64_t i = 0; i < height * width; ++i) {
          totals[i] += partial[(index * count + tile) * rows * columns + i];
        }
      }
      store(totals, offsets[0], height, width);
    });
  }

  // Calls function(tile, offsets, height, width) for tiles [begin, end). A tile at the end of an axis may be smaller.
  template <class Function>
  void each_tile(int64_t begin, int64_t end, const Function& function) const {
    const int inner = loops.kept.rank - 1;
    for (Position at(tiles, 2, begin); begin < end; ++begin, at.advance(1)) {
      const int64_t height = rows == 1 ? 1 : std::min(rows, loops.kept.sizes[second] - at.index(second) * rows);
      function(begin, at.offsets(), height, std::min(columns, loops.kept.sizes[inner] - at.index(inner) * columns));
    }
  }

  void add_runs(const T* first, int64_t width, int64_t start, int64_t stop, double* totals) const {
    alignas(64) A buffer[kRun];
    const int64_t stride = loops.taken.strides[0][loops.taken.rank - 1];
    const int64_t next = loops.kept.strides[1][loops.kept.rank - 1];
    Position taken(loops.taken, 1, start);
    for (int64_t n; start < stop; start += n, taken.advance(n)) {
      n = std::min({stop - start, taken.left(), kRun});
      const T* const runs = first + taken.offsets()[0];
      if (std::is_same_v<T, A> && stride == 1) {
        formula.sum(load_block(runs, 1, n, buffer), next, n, width, totals);
        continue;
      }
      for (int64_t i = 0; i < width; ++i) {
        copy_block(runs + i * next, stride, n, buffer + i * n);
      }
      formula.sum(buffer, n, n, width, totals);
    }
  }

  void add_columns(const T* first, int64_t height, int64_t width, int64_t start, int64_t stop, double* totals) const {
    alignas(64) A buffer[kTile], sums[kTile];
    alignas(64) T moved[kTile];
    const Matrix<T> place = matrix(1, const_cast<T*>(first));
    const int64_t n = height * width;
    Position taken(loops.taken, 1, start);
    while (start < stop) {
      std::fill_n(sums, n, A(0));
      for (const int64_t next = std::min(stop, start + kTerms); start < next; ++start, taken.advance(1)) {
        T* const term = place.data + taken.offsets()[0];
        if (height == 1) {
          formula.add(load_block(term, place.column, n, buffer), n, sums);
        } else {
          copy_matrix<T>({term, place.row, place.column}, {moved, width, 1}, height, width);
          formula.add(load_block(moved, 1, n, buffer), n, sums);
        }
      }
      for (int64_t i = 0; i < n; ++i) {
        totals[i] += sums[i];
      }
    }
  }

  void store(const double* totals, int64_t offset, int64_t height, int64_t width) const {
    alignas(64) A finished[kTile];
    alignas(64) T rounded[kTile];
    T* const results = dense_block(finished, rounded);
    formula.finish(totals, height * width, terms, finished);
    store_block(finished, results, 1, height * width);
    copy_matrix<T>({results, width, 1}, matrix(0, y + offset), height, width);
  }

  // The memory of a tile, from its first element on.
  Matrix<T> matrix(int operand, T* data) const {
    const int64_t* const strides = loops.kept.strides[operand];
    return {data, rows == 1 ? 0 : strides[second], strides[loops.kept.rank - 1]};
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
  const int64_t results = reduction.rows * reduction.columns;
  Buffer<double> partial(reduction.chunks > 1 ? reduction.chunks * reduction.count * results : 0);
  if (reduction.chunks > 1) {
    reduction.partial = partial.data();
  }
  const int64_t elements = results * std::min(reduction.chunk, reduction.terms) + 1;
  parallel(host, reduction.count * reduction.chunks, std::max<int64_t>(1, kGrain / elements),
           [&](int64_t begin, int64_t end) { reduction.sum(begin, end); });
  if (reduction.chunks > 1) {
    parallel(host, reduction.count, std::max<int64_t>(1, kGrain / (reduction.chunks * results)),
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
