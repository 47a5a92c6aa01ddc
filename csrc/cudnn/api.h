// The functions and constants of cuDNN 9's backend interface that convolutions need. The library is found by name among
// the libraries that torch has loaded, so that the build needs neither cuDNN's headers nor its library. The constants
// have the values of cudnn_graph.h, which are the same in every version of cuDNN 9.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cudnn/refused.h"

namespace fuseconv::cudnn {

using Handle = void*;
using BackendDescriptor = void*;

struct Functions {
  int (*create)(Handle*);
  int (*set_stream)(Handle, void* stream);
  int (*create_descriptor)(int kind, BackendDescriptor*);
  int (*destroy_descriptor)(BackendDescriptor);
  int (*set_attribute)(BackendDescriptor, int name, int type, int64_t count, const void* elements);
  int (*get_attribute)(BackendDescriptor, int name, int type, int64_t asked, int64_t* count, void* elements);
  int (*finalize)(BackendDescriptor);
  int (*execute)(Handle, BackendDescriptor plan, BackendDescriptor pack);
  const char* (*error_string)(int status);
  size_t (*version)();
};

// Returns the functions of the loaded library, or null if the process has no cuDNN 9.
const Functions* functions();

// Returns this thread's handle for the current device, or null if the process has no cuDNN 9.
Handle handle_of_thread();

enum Kind {
  kPointwise = 0,
  kConvolution = 1,
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristics = 4,
  kExecutionPlan = 5,
  kKnobChoice = 7,
  kConvolutionForward = 10,
  kOperationPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
};

enum Type {
  kTypeHandle = 0,
  kTypeDataType = 1,
  kTypeBoolean = 2,
  kTypeInt64 = 3,
  kTypeFloat = 4,
  kTypePointer = 6,
  kTypeConvolutionMode = 7,
  kTypeHeuristicMode = 8,
  kTypeKnob = 9,
  kTypeNumericalNote = 11,
  kTypePointwiseMode = 14,
  kTypeDescriptor = 15,
  kTypeBehaviorNote = 19,
};

enum Attribute {
  kPointwiseMode = 0,
  kPointwisePrecision = 1,
  kConvolutionType = 100,
  kConvolutionMode = 101,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPostPaddings = 104,
  kConvolutionPrePaddings = 105,
  kConvolutionSpatialDims = 106,
  kHeuristicsMode = 200,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kConfigKnobChoices = 302,
  kPlanHandle = 400,
  kPlanConfig = 401,
  kPlanWorkspace = 402,
  kKnobType = 600,
  kKnobValue = 601,
  kForwardAlpha = 700,
  kForwardBeta = 701,
  kForwardConvolution = 702,
  kForwardWeight = 703,
  kForwardX = 704,
  kForwardY = 705,
  kOperationPointwiseDescriptor = 750,
  kOperationPointwiseX = 751,
  kOperationPointwiseB = 752,
  kOperationPointwiseY = 753,
  kGraphHandle = 800,
  kGraphOperations = 801,
  kTensorAlignment = 900,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorId = 906,
  kTensorIsVirtual = 907,
  kPackIds = 1000,
  kPackPointers = 1001,
  kPackWorkspace = 1003,
  kEngineIndex = 1301,
  kEngineNumericalNotes = 1303,
  kEngineBehaviorNotes = 1305,
};

enum Number {
  kFloat = 0,
  kHalf = 2,
  kBfloat16 = 9,
  kCrossCorrelation = 1,
  kAdd = 0,
  kRelu = 100,
  kHeuristicA = 3,
  kRuntimeCompilation = 0,
  kNondeterministic = 4,
};

// Throws Refused if a cuDNN call returned an error.
inline void check(int status, const char* call) {
  if (status != 0) {
    throw Refused(std::string("fuseconv: cuDNN: ") + call + ": " + functions()->error_string(status));
  }
}

// Owns a descriptor of cuDNN's backend interface.
class Descriptor {
 public:
  explicit Descriptor(Kind kind) { check(functions()->create_descriptor(kind, &descriptor_), "create"); }
  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ != nullptr) {
      functions()->destroy_descriptor(descriptor_);
    }
  }

  BackendDescriptor get() const { return descriptor_; }

  template <class T>
  Descriptor& set(Attribute name, Type type, const T* elements, size_t count) {
    check(functions()->set_attribute(descriptor_, name, type, static_cast<int64_t>(count), elements), "set");
    return *this;
  }
  template <class T>
  Descriptor& set(Attribute name, Type type, const T& element) {
    return set(name, type, &element, 1);
  }
  Descriptor& set(Attribute name, const Descriptor& descriptor) { return set(name, kTypeDescriptor, descriptor.get()); }
  Descriptor& set(Attribute name, const std::vector<int64_t>& numbers) {
    return set(name, kTypeInt64, numbers.data(), numbers.size());
  }

  template <class T>
  int64_t get(Attribute name, Type type, T* elements, int64_t asked) const {
    int64_t count = 0;
    check(functions()->get_attribute(descriptor_, name, type, asked, &count, elements), "get");
    return count;
  }

  Descriptor& finalize() {
    check(functions()->finalize(descriptor_), "finalize");
    return *this;
  }

 private:
  BackendDescriptor descriptor_ = nullptr;
};

}  // namespace fuseconv::cudnn
