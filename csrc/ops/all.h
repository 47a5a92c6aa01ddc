// The one list of ops. Bindings fold over it; nothing else names an op.
#pragma once

#include <tuple>

#include "ops/activation_backward.h"
#include "ops/add_layer_norm.h"
#include "ops/add_relu.h"
#include "ops/add_rms_norm.h"
#include "ops/attention_score.h"
#include "ops/bias_act.h"
#include "ops/gated_act.h"
#include "ops/gated_act_backward.h"
#include "ops/gelu_dropout.h"
#include "ops/group_norm_act.h"
#include "ops/layer_norm_act.h"
#include "ops/linear_act.h"
#include "ops/linear_gated.h"
#include "ops/mean_abs.h"
#include "ops/mlp.h"
#include "ops/mul_add.h"
#include "ops/mul_tanh.h"
#include "ops/norm_backward.h"
#include "ops/rms_norm.h"
#include "ops/sum_squared.h"

namespace fuseconv {

using AllOps = std::tuple<ActivationBackward, AddLayerNorm, AddRelu, AddRmsNorm, AttentionScore, BiasAct, GatedAct,
                          GatedActBackward, GeluDropout, GroupNormAct, LayerNormAct, LinearAct, LinearGated, MeanAbs,
                          Mlp, MulAdd, MulTanh, NormBackward, RmsNorm, SumSquared>;

}  // namespace fuseconv
