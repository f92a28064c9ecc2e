#include "weft/train/options_fields.h"

#include <algorithm>
#include <array>

namespace weft {
namespace {

constexpr auto table = std::to_array<FieldFlag>({
    // ModelConfig
    {"hidden", "--hidden-size"},
    {"norm_epsilon", "--norm-epsilon"},
    {"zero_centred_norms", "--apply-layernorm-1p"},
    {"tied_embeddings", "--tie-embeddings"},
    {"vocabulary", "--vocab-size"},
    {"padded_vocabulary", "--make-vocab-size-divisible-by"},
    {"mtp_loss_factor", "--mtp-loss-scaling-factor"},
    {"attention.heads", "--num-attention-heads"},
    {"attention.kv_heads", "--num-query-groups"},
    {"attention.head_dim", "--kv-channels"},
    {"attention.window", "--window-size"},
    {"attention.qk_norm", "--qk-layernorm"},
    {"attention.output_gate", "--attention-output-gate"},
    {"attention.qkv_bias", "--add-qkv-bias"},
    {"attention.rope.fraction", "--rotary-percent"},
    {"attention.rope.base", "--rotary-base"},
    {"latent_attention.heads", "--num-attention-heads"},
    {"latent_attention.q_rank", "--q-lora-rank"},
    {"latent_attention.kv_rank", "--kv-lora-rank"},
    {"latent_attention.head_dim", "--qk-head-dim"},
    {"latent_attention.rotary_dim", "--qk-pos-emb-head-dim"},
    {"latent_attention.value_dim", "--v-head-dim"},
    {"latent_attention.rope.enabled", "--position-embedding-type"},
    {"latent_attention.rope.fraction", "--rotary-percent"},
    {"latent_attention.rope.base", "--rotary-base"},
    {"latent_attention.indexer.heads", "--dsa-indexer-n-heads"},
    {"latent_attention.indexer.dim", "--dsa-indexer-head-dim"},
    {"latent_attention.indexer.topk", "--dsa-indexer-topk"},
    {"latent_attention.indexer.loss_factor", "--dsa-indexer-loss-coeff"},
    {"mamba.heads", "--mamba-num-heads"},
    {"mamba.head_dim", "--mamba-head-dim"},
    {"mamba.groups", "--mamba-num-groups"},
    {"mamba.state", "--mamba-state-dim"},
    {"mamba.taps", "--mamba-conv-kernel-dim"},
    {"mamba.chunk", "--mamba-chunk-size"},
    {"delta_net.heads", "--linear-num-value-heads"},
    {"delta_net.key_heads", "--linear-num-key-heads"},
    {"delta_net.head_dim", "--linear-value-head-dim"},
    {"delta_net.key_dim", "--linear-key-head-dim"},
    {"delta_net.taps", "--linear-conv-kernel-dim"},
    {"mlp.ffn", "--ffn-hidden-size"},
    {"experts.experts", "--num-experts"},
    {"experts.ffn", "--moe-ffn-hidden-size"},
    {"experts.shared_ffn", "--moe-shared-expert-intermediate-size"},
    {"experts.bias", "--add-bias-linear"},
    {"experts.latent", "--moe-latent-size"},
    {"experts.shared_gate", "--moe-shared-expert-gate"},
    {"experts.expert_bias", "--moe-router-enable-expert-bias"},
    {"experts.router.k", "--moe-router-topk"},
    {"experts.router.groups", "--moe-router-num-groups"},
    {"experts.router.keep_groups", "--moe-router-group-topk"},
    {"experts.router.score", "--moe-router-score-function"},
    {"experts.router.normalise", "--moe-router-norm-topk"},
    {"experts.router.choose_first", "--moe-router-pre-softmax"},
    {"experts.router.scaling", "--moe-router-topk-scaling-factor"},
    // ModuleOptions
    {"expert_ranks", "--expert-model-parallel-size"},
    {"context_ranks", "--context-parallel-size"},
    {"tensor_ranks", "--tensor-model-parallel-size"},
    {"expert_tensor_ranks", "--expert-tensor-parallel-size"},
    {"batch", "--micro-batch-size"},
    {"sequence_parallel", "--sequence-parallel"},
    {"length", "--seq-length"},
    // Devices and executors
    {"device", "--device"},
    {"threads", "--threads"},
    {"executor", "--executor"},
    {"fault", "--inject-fault"},
});

}  // namespace

std::span<const FieldFlag> field_flags() { return table; }

std::string with_flags(std::string_view message) {
  std::string text;
  while (true) {
    const std::size_t open = message.find('`');
    const std::size_t close = open == std::string_view::npos ? open : message.find('`', open + 1);
    if (close == std::string_view::npos) return text.append(message);
    const std::string_view field = message.substr(open + 1, close - open - 1);
    const auto at = std::find_if(table.begin(), table.end(), [&](const FieldFlag& f) { return f.field == field; });
    text.append(message.substr(0, open));
    if (at == table.end()) {
      // The second backquote may be the first of a field.
      text.append(message.substr(open, close - open));
      message.remove_prefix(close);
    } else {
      text.append(at->flag);
      message.remove_prefix(close + 1);
    }
  }
}

}  // namespace weft
