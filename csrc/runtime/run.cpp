// fuseconv-run BUNDLE --target T --inputs FILE -o FILE: `fuseconv run` without Python, with the same exit statuses.
// fuseconv-run --versions: prints the versions of LibTorch and ONNX Runtime.
//
// The bundle is loaded once and called for every --inputs. The outputs of the Nth --inputs are written to the Nth -o.
#include <charconv>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuseconv/model.h"
#include "runner.h"

namespace {

using namespace fuseconv::runtime;

constexpr const char* kUsage =
    "fuseconv-run BUNDLE [--target NAME] [--cuda-graphs auto|off|on] [--cuda-graphs-memory BYTES] (--inputs "
    "FILE.safetensors -o FILE.safetensors)...";

constexpr const char* kHelp =
    R"(Usage: fuseconv-run BUNDLE [OPTIONS] (--inputs FILE -o FILE)...

  Run BUNDLE on the tensors in a file, and write its outputs to another file. The bundle
  is loaded once and called for every --inputs, whose outputs go to the -o beside it.

Options:
  --inputs FILE                 .safetensors, one tensor for each input.
  -o FILE                       Output file: .safetensors.
  --target NAME                 aoti, torchscript, onnx-plugin, onnx. [default: the bundle's default target]
  --cuda-graphs auto|off|on     Whether calls are replayed from CUDA graphs: auto where that pays,
                                on from the first call of every shape. [default: off]
  --cuda-graphs-memory BYTES    The most memory that they hold. [default: a tenth of what is free]
  --versions                    Print the versions of LibTorch and ONNX Runtime.
  -h, --help                    Print this.

Exit status: 0 done, 2 an option or a call is wrong, 3 refused, 4 not supported here,
  5 a runtime or the device failed, 6 a file could not be read or written, 7 a bug.
)";

// Parses --cuda-graphs. The default is off, because a capture does not pay off for a single call.
Capture capture(const std::string& word) {
  if (word != "auto" && word != "on" && word != "off" && !word.empty()) {
    throw Error(Kind::usage, "--cuda-graphs is " + word, "fuseconv-run", kUsage);
  }
  return word == "auto" ? Capture::automatic : word == "on" ? Capture::on : Capture::off;
}

// Parses a number of bytes. Returns std::nullopt if the option was not given.
std::optional<int64_t> bytes(const std::string& word) {
  if (word.empty()) {
    return std::nullopt;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < 0) {
    throw Error(Kind::usage, "--cuda-graphs-memory is " + word, "fuseconv-run", kUsage);
  }
  return value;
}

// Prints one line per library, such as "torch 2.13.0". If the library does not run here, prints the reason instead of
// the version.
int print_versions() {
  for (const auto& [name, version] :
       {std::pair{"torch", &torch_version}, std::pair{"onnxruntime", &onnxruntime_version}}) {
    try {
      std::cout << name << " " << version() << "\n";
    } catch (const Error& error) {
      std::cout << name << " - " << error.what() << "; " << error.fix << "\n";
    }
  }
  return 0;
}

int run(int count, char** words) {
  if (count == 2 && std::string_view(words[1]) == "--versions") {
    return print_versions();
  }
  if (count == 2 && (std::string_view(words[1]) == "--help" || std::string_view(words[1]) == "-h")) {
    std::cout << kHelp;
    return 0;
  }
  std::string bundle, target, graphs, memory;
  std::vector<std::string> inputs, outputs;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const bool has_value = i + 1 < count;
    if (word == "--target" && has_value) {
      target = words[++i];
    } else if (word == "--cuda-graphs" && has_value) {
      graphs = words[++i];
    } else if (word == "--cuda-graphs-memory" && has_value) {
      memory = words[++i];
    } else if (word == "--inputs" && has_value) {
      inputs.push_back(words[++i]);
    } else if (word == "-o" && has_value) {
      outputs.push_back(words[++i]);
    } else if (bundle.empty() && !word.starts_with("-")) {
      bundle = word;
    } else {
      throw Error(Kind::usage, "unknown argument " + word + ", or its value is missing", "fuseconv-run", kUsage);
    }
  }
  if (bundle.empty() || inputs.empty() || inputs.size() != outputs.size()) {
    throw Error(Kind::usage, "give BUNDLE, --inputs, and one -o per --inputs", "fuseconv-run", kUsage);
  }
  const Model model = Model::load(bundle, target, {capture(graphs), bytes(memory)});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const NamedTensors results = model(load_tensors(inputs[i]));
    save_tensors(outputs[i], results);
    for (const auto& [name, tensor] : results) {
      std::cout << name << " " << tensor.dtype << " " << shape_text(tensor.shape) << "\n";
    }
  }
  if (graphs == "auto" && !model.cuda_graphs().reason.empty()) {
    std::cerr << "note: no CUDA graphs: " << model.cuda_graphs().reason << "\n";
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
