// methods BUNDLE TARGET INPUTS OUTPUTS: loads all methods of a bundle, releases all but `decode`, and calls it.
//
// Prints how often the file of weights is mapped while all methods are loaded. Then loads the weights of the artifacts
// alone, and prints at how many different addresses they are.
#include <fstream>
#include <iostream>
#include <set>
#include <string>

#include "fuseconv/model.h"
#include "weights.h"

namespace {

using namespace fuseconv::runtime;

int mappings(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.ends_with("/" + name) ? 1 : 0;
  }
  return count;
}

void print_addresses(const std::filesystem::path& bundle, const std::string& artifact, const std::string& device) {
  SharedWeights shared;
  std::set<const void*> addresses;
  for (const char* method : {"prefill", "decode"}) {
    const auto weights = weights_of_artifact(bundle / "methods" / method / artifact, device, shared);
    for (const auto& [name, weight] : weights.value()) {
      addresses.insert(weight.const_data_ptr());
    }
  }
  std::cout << "addresses " << addresses.size() << "\n";
}

}  // namespace

int main(int count, char** words) {
  if (count != 5) {
    std::cerr << "usage: methods BUNDLE TARGET INPUTS.safetensors OUTPUTS.safetensors\n";
    return 2;
  }
  try {
    const std::filesystem::path bundle = words[1];
    const std::string target = words[2];
    auto methods = Model::load_methods(bundle, target);
    std::cout << "mappings " << mappings("weights.safetensors") << "\n";
    print_addresses(bundle, target == "aoti" ? "aoti/model.pt2" : "torchscript/model.pt",
                    methods.at("decode").contract().device);
    std::erase_if(methods, [](const auto& one) { return one.first != "decode"; });
    save_tensors(words[4], methods.at("decode")(load_tensors(words[3])));
    return 0;
  } catch (const Error& error) {
    std::cerr << "error: " << error.text() << "\n";
    return error.exit_status();
  }
}
