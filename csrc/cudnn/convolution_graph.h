// Describes a convolution and its epilogue as a graph of cuDNN operations, and lists the engine configurations that
// cuDNN proposes for the graph.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/layout.h"
#include "cudnn/api.h"
#include "cudnn/convolution.h"

namespace fuseconv::cudnn {

inline constexpr size_t kProposals = 64;
inline constexpr size_t kKnobs = 64;
inline constexpr int64_t kMostNotes = 16;

// Identifies the tensors of the operations.
enum Id : int64_t { kX = 1, kWeight, kY, kBias, kResidual, kFirstVirtual };

// Returns the name under which an engine configuration is stored as a tactic. It consists of the engine's index and the
// numbers and values of its knobs, such as "engine 5 k2=1".
inline std::string name_of(const Descriptor& configuration) {
  const Descriptor engine(kEngine);
  BackendDescriptor raw = engine.get();
  configuration.get(kConfigEngine, kTypeDescriptor, &raw, 1);
  int64_t index = 0;
  engine.get(kEngineIndex, kTypeInt64, &index, 1);
  std::vector<Descriptor> choices;
  std::vector<BackendDescriptor> places;
  for (size_t i = 0; i < kKnobs; ++i) {
    places.push_back(choices.emplace_back(kKnobChoice).get());
  }
  const int64_t count = configuration.get(kConfigKnobChoices, kTypeDescriptor, places.data(), int64_t{kKnobs});
  std::map<int, int64_t> knobs;
  for (size_t i = 0; i < std::min(static_cast<size_t>(count), kKnobs); ++i) {
    int knob = 0;
    int64_t value = 0;
    choices[i].get(kKnobType, kTypeKnob, &knob, 1);
    choices[i].get(kKnobValue, kTypeInt64, &value, 1);
    knobs[knob] = value;
  }
  std::string name = "engine " + std::to_string(index);
  for (const auto& [knob, value] : knobs) {
    name.append(" k").append(std::to_string(knob)).append("=").append(std::to_string(value));
  }
  return name;
}

// The operation graph of a problem, and the engine configurations that cuDNN proposes for it.
class Graph {
 public:
  Graph(Handle handle, const Problem& p) {
    const int type = p.x.dtype == Dtype::f16 ? kHalf : kBfloat16;
    const Descriptor& x = tensor(kX, type, p.x);
    const Descriptor& weight = tensor(kWeight, type, p.weight);
    const int64_t spatial = p.x.rank - 2;
    Descriptor& convolution = made(kConvolution);
    convolution.set(kConvolutionType, kTypeDataType, int{kFloat})
        .set(kConvolutionMode, kTypeConvolutionMode, int{kCrossCorrelation})
        .set(kConvolutionSpatialDims, kTypeInt64, spatial)
        .set(kConvolutionStrides, copy(p.parameters.stride))
        .set(kConvolutionPrePaddings, copy(p.parameters.padding))
        .set(kConvolutionPostPaddings, copy(p.parameters.padding_after))
        .set(kConvolutionDilations, copy(p.parameters.dilation))
        .finalize();
    // cuDNN's engines add the residual before the bias.
    int steps = (p.residual ? 1 : 0) + (p.bias ? 1 : 0) + (p.relu ? 1 : 0);
    const auto result = [&]() -> const Descriptor& {
      return steps-- == 0 ? tensor(kY, type, p.y) : tensor(next_++, kFloat, p.y, true);
    };
    const Descriptor* value = &result();
    Descriptor& forward = made(kConvolutionForward);
    forward.set(kForwardConvolution, convolution)
        .set(kForwardX, x)
        .set(kForwardWeight, weight)
        .set(kForwardY, *value)
        .set(kForwardAlpha, kTypeFloat, 1.0f)
        .set(kForwardBeta, kTypeFloat, 0.0f)
        .finalize();
    operations_.push_back(forward.get());
    const auto pointwise = [&](Number mode, const Descriptor* operand) {
      Descriptor& function = made(kPointwise);
      function.set(kPointwiseMode, kTypePointwiseMode, int{mode})
          .set(kPointwisePrecision, kTypeDataType, int{kFloat})
          .finalize();
      const Descriptor& y = result();
      Descriptor& operation = made(kOperationPointwise);
      operation.set(kOperationPointwiseDescriptor, function).set(kOperationPointwiseX, *value);
      if (operand != nullptr) {
        operation.set(kOperationPointwiseB, *operand);
      }
      operation.set(kOperationPointwiseY, y).finalize();
      operations_.push_back(operation.get());
      value = &y;
    };
    if (p.residual) {
      pointwise(kAdd, &tensor(kResidual, type, p.y));
    }
    if (p.bias) {
      Spec bias = contiguous_bias(p);
      pointwise(kAdd, &tensor(kBias, type, bias));
    }
    if (p.relu) {
      pointwise(kRelu, nullptr);
    }
    Descriptor& graph = made(kOperationGraph);
    graph.set(kGraphOperations, kTypeDescriptor, operations_.data(), operations_.size())
        .set(kGraphHandle, kTypeHandle, handle)
        .finalize();
    propose(graph);
  }

  const std::vector<Descriptor>& configurations() const { return configurations_; }

 private:
  static std::vector<int64_t> copy(std::span<const int64_t> numbers) { return {numbers.begin(), numbers.end()}; }

  // Returns the Spec of the bias as a channels-last tensor [1, O, 1, 1] or [1, O, 1, 1, 1].
  static Spec contiguous_bias(const Problem& p) {
    int64_t sizes[kMaxRank];
    std::fill_n(sizes, p.y.rank, 1);
    sizes[1] = p.y.sizes[1];
    return channels_last(p.y.dtype, p.y.rank, sizes);
  }

  Descriptor& made(Kind kind) { return *kept_.emplace_back(std::make_unique<Descriptor>(kind)); }

  // Creates the descriptor of a channels-last tensor with the sizes of `shape`.
  const Descriptor& tensor(int64_t id, int type, In shape, bool is_virtual = false) {
    const Spec spec = channels_last(shape.dtype, shape.rank, shape.sizes);
    Descriptor& tensor = made(kTensor);
    tensor.set(kTensorId, kTypeInt64, id)
        .set(kTensorDataType, kTypeDataType, type)
        .set(kTensorAlignment, kTypeInt64, int64_t{16})
        .set(kTensorIsVirtual, kTypeBoolean, is_virtual)
        .set(kTensorDimensions, kTypeInt64, spec.sizes, static_cast<size_t>(spec.rank))
        .set(kTensorStrides, kTypeInt64, spec.strides, static_cast<size_t>(spec.rank))
        .finalize();
    return tensor;
  }

  void propose(const Descriptor& graph) {
    Descriptor& heuristics = made(kEngineHeuristics);
    heuristics.set(kHeuristicsGraph, graph).set(kHeuristicsMode, kTypeHeuristicMode, int{kHeuristicA}).finalize();
    std::vector<Descriptor> proposed;
    std::vector<BackendDescriptor> raw;
    for (size_t i = 0; i < kProposals; ++i) {
      raw.push_back(proposed.emplace_back(kEngineConfig).get());
    }
    const int64_t count =
        heuristics.get(kHeuristicsResults, kTypeDescriptor, raw.data(), static_cast<int64_t>(kProposals));
    for (size_t i = 0; i < std::min(static_cast<size_t>(count), kProposals); ++i) {
      const Descriptor engine(kEngine);
      BackendDescriptor raw_engine = engine.get();
      proposed[i].get(kConfigEngine, kTypeDescriptor, &raw_engine, 1);
      if (!has_note(engine, kEngineBehaviorNotes, kTypeBehaviorNote, kRuntimeCompilation) &&
          !has_note(engine, kEngineNumericalNotes, kTypeNumericalNote, kNondeterministic)) {
        configurations_.push_back(std::move(proposed[i]));
      }
    }
  }

  static bool has_note(const Descriptor& engine, Attribute name, Type type, int note) {
    int notes[kMostNotes];
    const int64_t count = std::min(engine.get(name, type, notes, kMostNotes), kMostNotes);
    return std::find(notes, notes + count, note) != notes + count;
  }

  std::vector<std::unique_ptr<Descriptor>> kept_;
  std::vector<BackendDescriptor> operations_;
  std::vector<Descriptor> configurations_;
  int64_t next_ = kFirstVirtual;
};

}  // namespace fuseconv::cudnn
