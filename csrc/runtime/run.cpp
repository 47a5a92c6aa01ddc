// fuseconv-run BUNDLE --target T --inputs FILE -o FILE: `fuseconv run` without Python. Exit statuses are the same.
#include <cstring>
#include <iostream>

#include "fuseconv/model.h"

namespace {

using namespace fuseconv::runtime;

constexpr const char* kUsage =
    "fuseconv-run BUNDLE [--target NAME] [--cuda-graphs auto|off|on] --inputs FILE.safetensors -o FILE.safetensors";

// For one call a capture is lost, so there is none unless it is asked for.
Capture capture(const std::string& word) {
  if (word != "auto" && word != "on" && word != "off" && !word.empty()) {
    throw Error(Kind::usage, "--cuda-graphs is " + word, "fuseconv-run", kUsage);
  }
  return word == "auto" ? Capture::automatic : word == "on" ? Capture::on : Capture::off;
}

int run(int count, char** words) {
  std::string bundle, target, graphs, inputs, output;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    std::string* value = word == "--target"        ? &target
                         : word == "--cuda-graphs" ? &graphs
                         : word == "--inputs"      ? &inputs
                         : word == "-o"            ? &output
                                                   : nullptr;
    if (value != nullptr && i + 1 < count) {
      *value = words[++i];
    } else if (value == nullptr && bundle.empty() && !word.starts_with("-")) {
      bundle = word;
    } else {
      throw Error(Kind::usage, "the argument " + word + " is wrong", "fuseconv-run", kUsage);
    }
  }
  if (bundle.empty() || inputs.empty() || output.empty()) {
    throw Error(Kind::usage, "BUNDLE, --inputs and -o are needed", "fuseconv-run", kUsage);
  }
  const Model model = Model::load(bundle, target, {capture(graphs)});
  const NamedTensors outputs = model(load_tensors(inputs));
  if (graphs == "auto" && !model.cuda_graphs().reason.empty()) {
    std::cerr << "note: no CUDA graphs: " << model.cuda_graphs().reason << "\n";
  }
  save_tensors(output, outputs);
  for (const auto& [name, tensor] : outputs) {
    std::cout << name << " " << tensor.dtype << " [";
    for (size_t i = 0; i < tensor.shape.size(); ++i) {
      std::cout << (i == 0 ? "" : ", ") << tensor.shape[i];
    }
    std::cout << "]\n";
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count, words);
  } catch (const Error& error) {
    std::cerr << "error: " << error.text() << "\n";
    return error.exit_status();
  } catch (const std::exception& error) {
    std::cerr << "error: a bug in fuseconv: " << error.what() << "\n";
    return 7;
  }
}
