// The one list of ops. Bindings fold over it; nothing else names an op.
#pragma once

#include <tuple>

#include "ops/add_layer_norm.h"
#include "ops/add_relu.h"
#include "ops/add_rms_norm.h"
#include "ops/attention_score.h"
#include "ops/bias_act.h"
#include "ops/layer_norm_act.h"
#include "ops/linear_act.h"
#include "ops/mul_add.h"
#include "ops/norm_backward.h"
#include "ops/rms_norm.h"

namespace fuseconv {

using AllOps = std::tuple<AddLayerNorm, AddRelu, AddRmsNorm, AttentionScore, BiasAct, LayerNormAct, LinearAct, MulAdd,
                          NormBackward, RmsNorm>;

}  // namespace fuseconv
