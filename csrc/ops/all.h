// The one list of ops. Bindings fold over it; nothing else names an op.
#pragma once

#include <tuple>

#include "ops/add_layer_norm.h"
#include "ops/add_relu.h"
#include "ops/bias_act.h"
#include "ops/gelu_dropout.h"
#include "ops/layer_norm_act.h"
#include "ops/linear_act.h"
#include "ops/mean_abs.h"
#include "ops/mul_add.h"
#include "ops/mul_tanh.h"
#include "ops/sum_squared.h"

namespace fuseconv {

using AllOps = std::tuple<AddLayerNorm, AddRelu, BiasAct, GeluDropout, LayerNormAct, LinearAct, MeanAbs, MulAdd,
                          MulTanh, SumSquared>;

}  // namespace fuseconv
