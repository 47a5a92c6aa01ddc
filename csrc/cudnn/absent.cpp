// Replaces the cuDNN convolution in the library for ONNX Runtime, which uses ONNX Runtime's own Conv: its process may
// have no cuDNN.
#include "cudnn/convolution.h"

namespace fuseconv::cudnn {

bool run(CudaHost&, const Problem&, bool) { return false; }

}  // namespace fuseconv::cudnn
