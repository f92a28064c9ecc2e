// One function per kind of layer. Each declares the layer's parameters and pieces and returns the value it writes;
// x and the result are the residual stream, [tokens, hidden].
#pragma once

#include "weft/model/builder.h"

namespace weft {

// The weight of the embedding. on_both_ends: the first and the last stage have it, and add up its gradients.
ParameterValues add_embedding_weight(ModuleBuilder& b, bool on_both_ends);      // embedding.cc
ValueId add_embedding(ModuleBuilder& b, ParameterValues weight);                // embedding.cc
ValueId add_attention(ModuleBuilder& b, const AttentionSpec& spec, ValueId x);  // `*`  attention.cc
// `+`, and with sparse `D`  latent_attention.cc
ValueId add_latent_attention(ModuleBuilder& b, const LatentAttentionSpec& spec, bool sparse, ValueId x);
ValueId add_mamba(ModuleBuilder& b, const MambaSpec& spec, ValueId x);         // `M`  mamba.cc
ValueId add_delta_net(ModuleBuilder& b, const DeltaNetSpec& spec, ValueId x);  // `G`  delta_net.cc
ValueId add_mlp(ModuleBuilder& b, const MlpSpec& spec, ValueId x);             // `-`  mlp.cc
ValueId add_experts(ModuleBuilder& b, const ExpertsSpec& spec, ValueId x);     // `E`  experts.cc
ValueId add_final_norm(ModuleBuilder& b, ValueId x, int depth = 0);            // head.cc
// Cross entropy of the next token, or of the one `depth` positions further on.
void add_head(ModuleBuilder& b, ValueId x, ParameterValues weight, int depth = 0);  // head.cc
// The input of MTP depth `depth`; h: the hidden state of the previous depth, after its final norm.
ValueId add_mtp_input(ModuleBuilder& b, int depth, ValueId h, ParameterValues embedding);  // mtp.cc

}  // namespace weft
