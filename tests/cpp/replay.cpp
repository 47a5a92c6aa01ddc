// replay BUNDLE TARGET INPUTS...: calls of several threads on streams of their own, with CUDA graphs and without, must
// give the same bytes. Prints the graphs, their memory and the host's time of a call.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <thread>

#include "fuseconv/model.h"

namespace {

using namespace fuseconv::runtime;

bool is_same(const NamedTensors& a, const NamedTensors& b) {
  bool same = a.size() == b.size();
  for (const auto& [name, tensor] : a) {
    const Tensor& other = b.at(name);
    same = same && tensor.dtype == other.dtype && tensor.shape == other.shape && tensor.data == other.data;
  }
  return same;
}

double microseconds(const Model& model, const NamedTensors& inputs) {
  constexpr int kCalls = 200;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    model(inputs);
  }
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() / kCalls;
}

}  // namespace

int main(int count, char** words) {
  const Model plain = Model::load(words[1], words[2], {Capture::off});
  const Model graphed = Model::load(words[1], words[2], {Capture::on});
  std::vector<NamedTensors> inputs, expected;
  for (int i = 3; i < count; ++i) {
    inputs.push_back(load_tensors(words[i]));
    NamedTensors outputs;
    for (int call = 0; call < 3; ++call) {  // TorchScript profiles in the first and optimises in the second
      outputs = plain(inputs.back());
    }
    expected.push_back(outputs);
  }
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, thread] {
      const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
      for (size_t i = 0; i < 4 * inputs.size(); ++i) {
        const size_t chosen = (i * (2 * thread + 1) + thread) % inputs.size();
        const Model& model = i % 4 == 3 ? plain : graphed;
        wrong += is_same(model(inputs[chosen]), expected[chosen]) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const CudaGraphs status = graphed.cuda_graphs();
  std::cout << "wrong " << wrong << "\ngraphs " << status.shapes.size() << "\nmemory " << status.memory << "\nreason "
            << status.reason << "\nus " << microseconds(graphed, inputs[0]) << "\nplain_us "
            << microseconds(plain, inputs[0]) << "\n";
  return wrong == 0 ? 0 : 1;
}
