// Concurrent calls of an AOTInductor package: a package loaded several times, whose loaders share the weights.
// Translates fuseconv/targets/aoti_loaders.py to C++, which says why.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace fuseconv::runtime {

// The loaders of a package, each of which makes one call at a time. There is one loader until a call finds all of them
// busy. Then another loader is added in the background, up to the limit.
class Loaders {
 public:
  using Loader = std::shared_ptr<torch::inductor::AOTIModelPackageLoader>;
  static constexpr size_t kLimit = 4;

  // `make` loads the package once more.
  Loaders(std::function<Loader()> make, size_t limit) : make_(std::move(make)), limit_(limit), first_(make_()) {}
  Loaders(const Loaders&) = delete;
  Loaders& operator=(const Loaders&) = delete;

  ~Loaders() {
    if (growing_.joinable()) {
      growing_.join();
    }
  }

  // Calls the package once a loader is idle. While a CUDA graph is captured, that is the first loader, which has loaded
  // its kernels in the calls before: loading a kernel may end the capture.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, bool capturing) {
    const Loader loader = take(capturing);
    struct Return {
      ~Return() { loaders.give(loader); }
      Loaders& loaders;
      const Loader& loader;
    } at_end{*this, loader};
    return loader->run(inputs);
  }

 private:
  Loader take(bool capturing) {
    std::unique_lock lock(mutex_);
    const auto found = [&] { return capturing ? std::find(idle_.begin(), idle_.end(), first_) : last(); };
    while (found() == idle_.end()) {
      if (count_ < limit_ && !is_growing_ && !capturing) {
        grow();
      }
      changed_.wait(lock);
    }
    const auto taken = found();
    Loader loader = *taken;
    idle_.erase(taken);
    return loader;
  }

  std::vector<Loader>::iterator last() { return idle_.empty() ? idle_.end() : std::prev(idle_.end()); }

  void give(const Loader& loader) {
    {
      const std::lock_guard lock(mutex_);
      idle_.push_back(loader);
    }
    changed_.notify_all();
  }

  // Adds a loader in a thread. If that fails, calls go on with the existing loaders. The mutex must be held.
  void grow() {
    is_growing_ = true;
    if (growing_.joinable()) {
      growing_.join();  // it has ended
    }
    growing_ = std::thread([this] {
      try {
        const Loader loader = make_();
        {
          const std::lock_guard lock(mutex_);
          ++count_;
          is_growing_ = false;
        }
        give(loader);
      } catch (const std::exception& error) {
        TORCH_WARN("the package cannot be loaded once more, so calls wait for one another: ", error.what());
      }
    });
  }

  const std::function<Loader()> make_;
  const size_t limit_;
  const Loader first_;
  std::vector<Loader> idle_{first_};
  size_t count_ = 1;
  bool is_growing_ = false;  // stays true after a failure
  std::thread growing_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace fuseconv::runtime
