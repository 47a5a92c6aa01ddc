// generate BUNDLE PROMPTS.safetensors COUNT: the most likely tokens after prompts, with the methods prefill and decode.
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

int run(const std::filesystem::path& bundle, const std::filesystem::path& prompts, int count) {
  const auto methods = Model::load_methods(bundle);
  const Model &prefill = methods.at("prefill"), &decode = methods.at("decode");
  NamedTensors call = load_tensors(prompts);
  const int64_t batch = call.at("input_ids").shape[0];
  call.merge(prefill.contract().zero_state({{"batch", batch}}));
  NamedTensors outputs = prefill(call);
  for (int i = 0; i < count; ++i) {
    const std::vector<int64_t> tokens = likeliest(outputs.at("logits"));
    for (const int64_t token : tokens) {
      std::cout << token << " ";
    }
    std::cout << "\n";
    call = decode.contract().next_state(outputs);
    call["input_ids"] = tensor(tokens);
    call["attention_mask"] = tensor(std::vector<int64_t>(tokens.size(), 1));
    outputs = decode(call);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  if (count != 4) {
    std::cerr << "usage: generate BUNDLE PROMPTS.safetensors COUNT\n";
    return 2;
  }
  try {
    return run(words[1], words[2], std::stoi(words[3]));
  } catch (const Error& error) {
    std::cerr << "error: " << error.text() << "\n";
    return error.exit_status();
  }
}
