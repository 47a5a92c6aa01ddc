// Runs a bundle once and prints the size and the sum of each output: embed BUNDLE TARGET INPUTS.safetensors
#include <fuseconv/model.h>
#include <cstring>
#include <iostream>

using namespace fuseconv::runtime;

int main(int count, char** words) {
  if (count != 4) {
    std::cerr << "usage: embed BUNDLE TARGET INPUTS.safetensors\n";
    return 2;
  }
  try {
    const Model model = Model::load(words[1], words[2]);
    for (const auto& [name, tensor] : model(load_tensors(words[3]))) {
      double sum = 0;
      for (size_t i = 0; i + 4 <= tensor.data.size() && tensor.dtype == "f32"; i += 4) {
        float value;
        std::memcpy(&value, &tensor.data[i], 4);
        sum += value;
      }
      std::cout << name << " " << tensor.dtype << " " << tensor.data.size() << " bytes, sum " << sum << "\n";
    }
  } catch (const Error& error) {
    std::cerr << "error: " << error.text() << "\n";
    return error.exit_status();
  }
}
