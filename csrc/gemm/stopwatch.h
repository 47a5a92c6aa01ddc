// Times kernels on a separate stream by replaying them from CUDA graphs, which excludes the host time of launches.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <vector>

#include "gemm/cuda_check.h"

namespace fuseconv::linear {

// Returns the mutex that must be held while candidates are timed, so that no other timing runs at the same time.
inline std::mutex& timing_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Returns the stream of all timings on the current device. The stream is never destroyed: torch keeps a cuBLAS
// workspace for each stream that it has used, and would allocate another workspace for every new stream.
inline cudaStream_t timing_stream() {
  int device;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  static std::map<int, cudaStream_t>& streams = *new std::map<int, cudaStream_t>;  // timing_mutex is held
  cudaStream_t& stream = streams[device];
  if (stream == nullptr) {
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  return stream;
}

// Times candidates. Owns two events and the graphs of the candidates. timing_mutex must be held while the object
// exists.
class Stopwatch {
 public:
  Stopwatch() : stream(timing_stream()) {
    cuda_check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda_check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() {
    for (cudaGraphExec_t graph : graphs_) {
      cudaGraphExecDestroy(graph);
    }
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  template <class Body>
  cudaGraphExec_t record(Body body, int repeats) {
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    try {
      for (int i = 0; i < repeats; ++i) {
        body();
      }
    } catch (...) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream, &broken);
      if (broken != nullptr) {
        cudaGraphDestroy(broken);
      }
      // clears the error of a capture that the body invalidated, which the next launch check would find
      cudaGetLastError();
      throw;
    }
    cudaGraph_t graph;
    cuda_check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    cuda_check(status, "cudaGraphInstantiate");
    graphs_.push_back(executable);
    return executable;
  }

  // Replays the graph twice and returns the time of the second replay in microseconds. The first replay hides the
  // launch of the second.
  float replay(cudaGraphExec_t graph) {
    cuda_check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    cuda_check(cudaEventRecord(begin_, stream), "cudaEventRecord");
    cuda_check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    cuda_check(cudaEventRecord(end_, stream), "cudaEventRecord");
    cuda_check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds;
    cuda_check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return milliseconds * 1e3f;
  }

  const cudaStream_t stream;

 private:
  cudaEvent_t begin_, end_;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace fuseconv::linear
