// advance BUNDLE TARGET OTHER PROMPTS COUNT GRAPHS: decodes with a state that stays on the device, and by plain calls.
//
// Prints how many outputs of `advance` differ from those of plain calls in any bit, with one state and with two that
// take turns, whether a plain call and a snapshot leave a state as it is, how many outputs of OTHER's decode, which
// continues a state of TARGET's prefill, are far from TARGET's, and the errors of wrong calls.
#include <cmath>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "fuseconv/model.h"

namespace {

using namespace fuseconv::runtime;

using Steps = std::vector<NamedTensors>;

NamedTensors step_inputs(int64_t batch, int64_t step) {
  Tensor ids{"i64", {batch, 1}, std::vector<char>(batch * sizeof(int64_t))}, mask = ids;
  for (int64_t row = 0; row < batch; ++row) {
    const int64_t id = 3 + (7 * step + 5 * row) % 80, one = 1;
    std::memcpy(ids.data.data() + row * sizeof(int64_t), &id, sizeof(id));
    std::memcpy(mask.data.data() + row * sizeof(int64_t), &one, sizeof(one));
  }
  return {{"input_ids", ids}, {"attention_mask", mask}};
}

bool same(const NamedTensors& left, const NamedTensors& right) {
  if (left.size() != right.size()) {
    return false;
  }
  for (const auto& [name, tensor] : left) {
    const auto found = right.find(name);
    if (found == right.end() || found->second.shape != tensor.shape || found->second.data != tensor.data) {
      return false;
    }
  }
  return true;
}

bool near(const NamedTensors& left, const NamedTensors& right) {
  const Tensor &one = left.at("logits"), &other = right.at("logits");
  const auto* a = reinterpret_cast<const float*>(one.data.data());
  const auto* b = reinterpret_cast<const float*>(other.data.data());
  for (size_t i = 0; i < one.data.size() / sizeof(float); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 1e-3f * (1 + std::abs(a[i])))) {
      return false;
    }
  }
  return one.data.size() == other.data.size();
}

class Decoding {
 public:
  Decoding(const std::map<std::string, Model>& methods, NamedTensors prompts, int64_t first)
      : prefill_(methods.at("prefill")), decode_(methods.at("decode")), prompts_(std::move(prompts)), first_(first) {}

  int64_t batch() const { return prompts_.at("input_ids").shape[0]; }

  // Returns the outputs of every step of plain calls, and the last state.
  std::pair<Steps, NamedTensors> plain(int count) const {
    NamedTensors call = prompts_;
    call.merge(prefill_.contract().zero_state({{"batch", batch()}}));
    Steps steps;
    NamedTensors outputs = prefill_(call), state = prefill_.contract().next_state(outputs);
    steps.push_back(std::move(outputs));
    for (int i = 0; i < count; ++i) {
      call = step_inputs(batch(), first_ + i);
      call.merge(state);
      outputs = decode_(call);
      state = decode_.contract().next_state(outputs);
      steps.push_back(std::move(outputs));
    }
    return {std::move(steps), std::move(state)};
  }

  State begin(Steps& steps) const {
    State state = prefill_.zero_state({{"batch", batch()}});
    steps.push_back(prefill_.advance(state, prompts_));
    return state;
  }

  void next(const Model& decode, State& state, Steps& steps) const {
    const auto step = static_cast<int64_t>(steps.size()) - 1;
    steps.push_back(decode.advance(state, step_inputs(batch(), first_ + step)));
  }

 private:
  const Model &prefill_, &decode_;
  NamedTensors prompts_;
  int64_t first_;
};

int different(const Steps& left, const Steps& right) {
  int count = left.size() == right.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    count += same(left[i], right[i]) ? 0 : 1;
  }
  return count;
}

template <typename Call>
void print_error(const std::string& name, const Call& call) {
  try {
    call();
    std::cout << name << " none\n";
  } catch (const Error& error) {
    std::cout << name << " " << error.exit_status() << " " << error.what() << "\n";
  }
}

void run(const std::filesystem::path& bundle, const std::string& target, const std::string& other,
         const std::filesystem::path& prompts, int count, const std::string& graphs) {
  const Capture capture = graphs == "on" ? Capture::on : graphs == "off" ? Capture::off : Capture::automatic;
  const auto methods = Model::load_methods(bundle, target, {capture, {}});
  const Model& decode = methods.at("decode");
  const Decoding one(methods, load_tensors(prompts), 0), two(methods, load_tensors(prompts), 40);
  const auto [expected, last] = one.plain(count);
  const auto [expected_two, last_two] = two.plain(count);

  Steps alone, first, second;
  State state = one.begin(alone);
  for (int i = 0; i < count; ++i) {
    one.next(decode, state, alone);
  }
  std::cout << "alone " << different(alone, expected) << "\n";
  std::cout << "last " << (same(state.snapshot(), last) ? "same" : "different") << "\n";

  State a = one.begin(first), b = two.begin(second);
  for (int i = 0; i < count; ++i) {
    one.next(decode, a, first);
    const NamedTensors before = a.snapshot();
    two.next(decode, b, second);
    NamedTensors call = step_inputs(one.batch(), 7);
    call.merge(NamedTensors(before));
    decode(call);
    if (!same(before, a.snapshot())) {
      std::cout << "changed at step " << i << "\n";
    }
  }
  std::cout << "in turns " << different(first, expected) + different(second, expected_two) << "\n";
  std::cout << "last in turns " << (same(b.snapshot(), last_two) ? "same" : "different") << "\n";

  const auto others = Model::load_methods(bundle, other);
  Steps moved;
  State again = one.begin(moved);
  int far = 0;
  for (int i = 0; i < count; ++i) {
    one.next(i % 2 == 0 ? others.at("decode") : decode, again, moved);
    far += near(moved.back(), expected[i + 1]) ? 0 : 1;
  }
  std::cout << "far " << far << "\n";

  State copy = decode.state(a.snapshot());
  const NamedTensors same_inputs = step_inputs(one.batch(), 1);
  std::cout << "copy " << (same(decode.advance(copy, same_inputs), decode.advance(a, same_inputs)) ? "same" : "not")
            << "\n";
  print_error("batch", [&] { decode.advance(a, step_inputs(one.batch() + 1, 1)); });
  print_error("twice", [&] {
    NamedTensors call = same_inputs;
    call.merge(a.snapshot());
    decode.advance(a, call);
  });
  print_error("sizes", [&] { decode.zero_state({}); });
  std::cout << "graphs " << decode.cuda_graphs().shapes.size() << "\n";
}

}  // namespace

int main(int count, char** words) {
  if (count != 7) {
    std::cerr << "usage: advance BUNDLE TARGET OTHER PROMPTS.safetensors COUNT auto|off|on\n";
    return 2;
  }
  try {
    run(words[1], words[2], words[3], words[4], std::stoi(words[5]), words[6]);
    return 0;
  } catch (const Error& error) {
    std::cerr << "error: " << error.text() << "\n";
    return error.exit_status();
  }
}
