// generate BUNDLE PROMPTS.safetensors COUNT [TARGET]: the most likely tokens after prompts, with the methods prefill
// and decode. The key-value cache stays in the memory of the device.
//
// PROMPTS has input_ids and attention_mask, i64 of shape [batch, tokens].
#include <algorithm>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "fuseconv/model.h"

namespace {

using namespace fuseconv::runtime;

Tensor tensor(const std::vector<int64_t>& values) {
  Tensor made{"i64", {static_cast<int64_t>(values.size()), 1}, std::vector<char>(values.size() * sizeof(int64_t))};
  std::memcpy(made.data.data(), values.data(), made.data.size());
  return made;
}

// The place of the largest logit in each row, f32 of shape [batch, vocabulary].
std::vector<int64_t> likeliest(const Tensor& logits) {
  const auto* row = reinterpret_cast<const float*>(logits.data.data());
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < logits.shape[0]; ++i, row += logits.shape[1]) {
    tokens.push_back(std::max_element(row, row + logits.shape[1]) - row);
  }
  return tokens;
}

int run(const std::filesystem::path& bundle, const std::filesystem::path& prompts, int count,
        const std::string& target) {
  const auto methods = Model::load_methods(bundle, target);
  const Model &prefill = methods.at("prefill"), &decode = methods.at("decode");
  const NamedTensors call = load_tensors(prompts);
  State state = prefill.zero_state({{"batch", call.at("input_ids").shape[0]}});
  NamedTensors outputs = prefill.advance(state, call);
  for (int i = 0; i < count; ++i) {
    const std::vector<int64_t> tokens = likeliest(outputs.at("logits"));
    for (const int64_t token : tokens) {
      std::cout << token << " ";
    }
    std::cout << "\n";
    const std::vector<int64_t> ones(tokens.size(), 1);
    outputs = decode.advance(state, {{"input_ids", tensor(tokens)}, {"attention_mask", tensor(ones)}});
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 4 && count != 5) {
    std::cerr << "usage: generate BUNDLE PROMPTS.safetensors COUNT [TARGET]\n";
    return 2;
  }
  try {
    return run(words[1], words[2], std::stoi(words[3]), count == 5 ? words[4] : "");
  } catch (const Error& error) {
    std::cerr << "error: " << error.text() << "\n";
    return error.exit_status();
  }
}
