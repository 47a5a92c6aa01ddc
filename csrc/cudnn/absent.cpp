// Replaces cudnn/convolution.cpp in the library for ONNX Runtime. ONNX models use ONNX Runtime's own Conv, and the
// process may have no cuDNN.
#include "cudnn/convolution.h"

namespace fuseconv::cudnn {

int64_t version() { return 0; }
std::optional<Call> prepare(CudaHost&, const Problem&, bool) { return std::nullopt; }
void run(const Call&, void*) { throw Refused("fuseconv: built without cuDNN"); }

}  // namespace fuseconv::cudnn
