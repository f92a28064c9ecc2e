#include "weft/model/config.h"

#include <cmath>

#include "weft/base/error.h"

namespace weft {

const AttentionSpec& ModelConfig::attention_of(int physical, int depth) const {
  const auto at = attention_at.find(physical);
  return depth > 0 || at == attention_at.end() ? attention : at->second;
}

namespace {

void require(bool holds, const std::string& message) {
  if (!holds) throw UserError(message);
}

void check_attention(const AttentionSpec& a) {
  require(a.heads >= 1, fmt::format("attention needs at least one head, not {} (--num-attention-heads)", a.heads));
  require(a.kv_heads >= 1 && a.heads % a.kv_heads == 0,
          fmt::format(
              "{} attention heads do not divide into {} key/value heads (--num-attention-heads, --num-query-groups)",
              a.heads, a.kv_heads));
  require(a.head_dim >= 1, fmt::format("a head has {} dims; give --kv-channels or sizes that divide", a.head_dim));
  require(a.window >= 0, fmt::format("a window of {} tokens (--window-size)", a.window));
  require(!(a.output_gate && a.qkv_bias),
          "an output gate and biases of q, k and v do not go together "
          "(--attention-output-gate, --add-qkv-bias)");
  if (!a.rope.enabled) return;
  const double width = static_cast<double>(a.head_dim) * a.rope.fraction;
  require(
      a.rope.fraction > 0 && a.rope.fraction <= 1 && std::llround(width) % 2 == 0 && std::llround(width) >= 2,
      fmt::format(
          "rotary embedding turns pairs of dims: {} of a head's {} dims (--rotary-percent {}) is not an even number",
          width, a.head_dim, a.rope.fraction));
  require(a.rope.base > 1, fmt::format("--rotary-base {} must be above 1", a.rope.base));
}

void check_latent_attention(const LatentAttentionSpec& a) {
  require(a.heads >= 1, fmt::format("attention needs at least one head, not {} (--num-attention-heads)", a.heads));
  require(a.q_rank >= 0, fmt::format("queries of rank {} (--q-lora-rank)", a.q_rank));
  require(a.kv_rank >= 1, fmt::format("keys and values of rank {} (--kv-lora-rank)", a.kv_rank));
  require(a.head_dim >= 1, fmt::format("{} dims of a head stay as they are (--qk-head-dim)", a.head_dim));
  require(a.value_dim >= 1, fmt::format("values of {} dims (--v-head-dim)", a.value_dim));
  require(a.rotary_dim >= 2 && a.rotary_dim % 2 == 0,
          fmt::format("rotary embedding turns pairs of dims: {} is not an even number (--qk-pos-emb-head-dim)",
                      a.rotary_dim));
  require(a.rope.enabled, "multi-latent attention has a rotary part of its own; it needs rotary positions");
  require(a.rope.fraction == 1, "of multi-latent attention's rotary part everything turns (--rotary-percent)");
  require(a.rope.base > 1, fmt::format("--rotary-base {} must be above 1", a.rope.base));
}

void check_mamba(const MambaSpec& m) {
  require(m.heads >= 1 && m.head_dim >= 1 && m.state >= 1,
          fmt::format("Mamba of {} heads of {}, state {} (--mamba-num-heads, --mamba-head-dim, --mamba-state-dim)",
                      m.heads, m.head_dim, m.state));
  require(m.groups >= 1 && m.heads % m.groups == 0,
          fmt::format("{} Mamba heads do not divide into {} groups (--mamba-num-heads, --mamba-num-groups)", m.heads,
                      m.groups));
  require(m.taps >= 1 && m.taps <= 16, fmt::format("a convolution of {} taps; 1 to 16 are done", m.taps));
  require(m.chunk >= 1, fmt::format("chunks of {} tokens (--mamba-chunk-size)", m.chunk));
  require(m.step_least >= 0 && m.step_most >= m.step_least,
          fmt::format("Mamba steps between {} and {}", m.step_least, m.step_most));
}

void check_delta_net(const DeltaNetSpec& d) {
  require(d.heads >= 1 && d.key_heads >= 1 && d.heads % d.key_heads == 0,
          fmt::format("{} value heads do not divide into {} key heads (--linear-num-value-heads, "
                      "--linear-num-key-heads)",
                      d.heads, d.key_heads));
  require(
      d.head_dim >= 1 && d.key_dim >= 1,
      fmt::format("heads of {} and {} dims (--linear-value-head-dim, --linear-key-head-dim)", d.head_dim, d.key_dim));
  require(d.taps >= 1 && d.taps <= 16,
          fmt::format("a convolution of {} taps; 1 to 16 are done (--linear-conv-kernel-dim)", d.taps));
  require(d.chunk >= 1, fmt::format("chunks of {} tokens", d.chunk));
}

void check_indexer(const LatentAttentionSpec& a) {
  require(a.q_rank >= 1, "sparse attention's indexer reads the queries' latent; give it a rank (--q-lora-rank)");
  require(a.indexer.heads >= 1, fmt::format("an indexer of {} heads (--dsa-indexer-n-heads)", a.indexer.heads));
  require(a.indexer.dim >= a.rotary_dim,
          fmt::format("an indexer's heads of {} dims hold no {} that turn (--dsa-indexer-head-dim)", a.indexer.dim,
                      a.rotary_dim));
  require(a.indexer.topk >= 1, fmt::format("{} keys to choose (--dsa-indexer-topk)", a.indexer.topk));
  require(a.indexer.loss_factor >= 0,
          fmt::format("--dsa-indexer-loss-coeff {} must not be negative", a.indexer.loss_factor));
}

}  // namespace

void check_config(const ModelConfig& c) {
  const Pattern pattern = parse_pattern(c.pattern);
  require(c.hidden >= 1, fmt::format("hidden size {} (--hidden-size)", c.hidden));
  require(c.vocabulary >= 1, fmt::format("a vocabulary of {} (--vocab-size)", c.vocabulary));
  require(
      c.embedding_rows() >= c.vocabulary,
      fmt::format("{} padded rows hold fewer than the {} words of the vocabulary", c.embedding_rows(), c.vocabulary));
  require(c.mtp_loss_factor > 0, fmt::format("--mtp-loss-scaling-factor {} must be above 0", c.mtp_loss_factor));
  const auto count = [&](Symbol symbol) {
    const auto at = pattern.counts.find(symbol);
    return at == pattern.counts.end() ? 0 : at->second;
  };
  if (count(Symbol::attention) > 0) {
    check_attention(c.attention);
    for (const auto& [physical, spec] : c.attention_at) check_attention(spec);
  }
  if (count(Symbol::latent_attention) + count(Symbol::sparse_attention) > 0) check_latent_attention(c.latent_attention);
  if (count(Symbol::sparse_attention) > 0) check_indexer(c.latent_attention);
  if (count(Symbol::mamba) > 0) check_mamba(c.mamba);
  if (count(Symbol::gated_delta) > 0) check_delta_net(c.delta_net);
  if (count(Symbol::mlp) > 0) require(c.mlp.ffn >= 1, fmt::format("an MLP of width {} (--ffn-hidden-size)", c.mlp.ffn));
  if (count(Symbol::experts) > 0) {
    const ExpertsSpec& e = c.experts;
    require(e.experts >= 1, fmt::format("the pattern has experts, but there are {} (--num-experts)", e.experts));
    constexpr std::int64_t most_experts = 1 << 16;  // each has a name in memory; the largest models have some hundreds
    require(e.experts <= most_experts,
            fmt::format("{} experts in a layer (--num-experts), of at most {}", e.experts, most_experts));
    require(e.ffn >= 1, fmt::format("experts of width {} (--moe-ffn-hidden-size)", e.ffn));
    require(e.router.k >= 1 && e.router.k <= e.experts,
            fmt::format("{} of {} experts cannot be chosen (--moe-router-topk, --num-experts)", e.router.k, e.experts));
    require(
        e.router.groups >= 1 && e.experts % e.router.groups == 0,
        fmt::format("{} experts do not divide into {} groups (--moe-router-num-groups)", e.experts, e.router.groups));
    require(e.router.keep_groups >= 1 && e.router.keep_groups <= e.router.groups &&
                e.router.k <= e.router.keep_groups * (e.experts / e.router.groups),
            fmt::format("{} groups of {} experts hold fewer than the {} to choose (--moe-router-group-topk)",
                        e.router.keep_groups, e.experts / e.router.groups, e.router.k));
    require(e.router.groups == 1 || (e.router.group_best >= 1 && e.router.group_best <= e.experts / e.router.groups),
            fmt::format("a group of {} experts has no {} best", e.experts / e.router.groups, e.router.group_best));
    require(!e.expert_bias || e.router.score == RouterSpec::Score::sigmoid,
            "the choice is corrected by a bias for sigmoid scores only (--moe-router-score-function)");
    require(!e.bias || e.shared_ffn == 0, "a shared expert has no biases (--add-bias-linear)");
  }
}

}  // namespace weft
