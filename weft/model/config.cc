#include "weft/model/config.h"

#include <cmath>

#include "weft/base/error.h"

namespace weft {

const AttentionSpec& ModelConfig::attention_of(int physical, int depth) const {
  const auto at = attention_at.find(physical);
  return depth > 0 || at == attention_at.end() ? attention : at->second;
}

namespace {

// Messages name fields in backquotes (weft/train/options_fields.h).
template <class... Args>
void require(bool holds, fmt::format_string<Args...> message, Args&&... args) {
  if (!holds) throw UserError(fmt::format(message, std::forward<Args>(args)...));
}

void require_positive(std::int64_t value, const char* field) {
  require(value >= 1, "`{}` {}: must be at least 1", field, value);
}

void check_attention(const AttentionSpec& a) {
  require_positive(a.heads, "attention.heads");
  require(a.kv_heads >= 1 && a.heads % a.kv_heads == 0, "`attention.kv_heads` {}: must divide `attention.heads` {}",
          a.kv_heads, a.heads);
  require_positive(a.head_dim, "attention.head_dim");
  require(a.window >= 0, "`attention.window` {}: must not be negative", a.window);
  require(!(a.output_gate && a.qkv_bias),
          "`attention.output_gate`: gated attention has no biases of q, k and v; drop it or `attention.qkv_bias`");
  if (!a.rope.enabled) return;
  const double width = static_cast<double>(a.head_dim) * a.rope.fraction;
  require(a.rope.fraction > 0 && a.rope.fraction <= 1 && std::llround(width) % 2 == 0 && std::llround(width) >= 2,
          "`attention.rope.fraction` {}: {} of the {} elements of a head would rotate, which must be an even number",
          a.rope.fraction, width, a.head_dim);
  require(a.rope.base > 1, "`attention.rope.base` {}: must be above 1", a.rope.base);
}

void check_latent_attention(const LatentAttentionSpec& a) {
  require_positive(a.heads, "latent_attention.heads");
  require(a.q_rank >= 0, "`latent_attention.q_rank` {}: must not be negative", a.q_rank);
  require_positive(a.kv_rank, "latent_attention.kv_rank");
  require_positive(a.head_dim, "latent_attention.head_dim");
  require_positive(a.value_dim, "latent_attention.value_dim");
  require(a.rotary_dim >= 2 && a.rotary_dim % 2 == 0,
          "`latent_attention.rotary_dim` {}: elements rotate in pairs; use an even number", a.rotary_dim);
  require(a.rope.enabled, "`latent_attention.rope.enabled`: multi-latent attention needs rotary positions");
  require(a.rope.fraction == 1,
          "`latent_attention.rope.fraction` {}: must be 1; `latent_attention.rotary_dim` decides how many elements "
          "rotate",
          a.rope.fraction);
  require(a.rope.base > 1, "`latent_attention.rope.base` {}: must be above 1", a.rope.base);
}

void check_mamba(const MambaSpec& m) {
  require_positive(m.heads, "mamba.heads");
  require_positive(m.head_dim, "mamba.head_dim");
  require_positive(m.state, "mamba.state");
  require(m.groups >= 1 && m.heads % m.groups == 0, "`mamba.groups` {}: must divide `mamba.heads` {}", m.groups,
          m.heads);
  require(m.taps >= 1 && m.taps <= 16, "`mamba.taps` {}: must be 1 to 16", m.taps);
  require_positive(m.chunk, "mamba.chunk");
  require(m.step_least >= 0 && m.step_most >= m.step_least,
          "`mamba.step_least` {}, `mamba.step_most` {}: bounds must not be negative, and the lower one comes first",
          m.step_least, m.step_most);
}

void check_delta_net(const DeltaNetSpec& d) {
  require_positive(d.heads, "delta_net.heads");
  require(d.key_heads >= 1 && d.heads % d.key_heads == 0, "`delta_net.key_heads` {}: must divide `delta_net.heads` {}",
          d.key_heads, d.heads);
  require_positive(d.head_dim, "delta_net.head_dim");
  require_positive(d.key_dim, "delta_net.key_dim");
  require(d.taps >= 1 && d.taps <= 16, "`delta_net.taps` {}: must be 1 to 16", d.taps);
  require_positive(d.chunk, "delta_net.chunk");
}

void check_indexer(const LatentAttentionSpec& a) {
  require(a.q_rank >= 1,
          "`latent_attention.q_rank` {}: the indexer of sparse attention reads the queries' latent; give it a width",
          a.q_rank);
  require_positive(a.indexer.heads, "latent_attention.indexer.heads");
  require(a.indexer.dim >= a.rotary_dim,
          "`latent_attention.indexer.dim` {}: must be at least `latent_attention.rotary_dim` {}", a.indexer.dim,
          a.rotary_dim);
  require_positive(a.indexer.topk, "latent_attention.indexer.topk");
  require(a.indexer.loss_factor >= 0, "`latent_attention.indexer.loss_factor` {}: must not be negative",
          a.indexer.loss_factor);
}

void check_experts(const ExpertsSpec& e) {
  constexpr std::int64_t most_experts = 1 << 16;  // each has a name in memory; the largest models have hundreds
  require(e.experts >= 1, "`experts.experts` {}: the pattern has experts, so it must be at least 1", e.experts);
  require(e.experts <= most_experts, "`experts.experts` {}: a layer can have at most {}", e.experts, most_experts);
  require_positive(e.ffn, "experts.ffn");
  const RouterSpec& r = e.router;
  require(r.k >= 1 && r.k <= e.experts, "`experts.router.k` {}: must be 1 to `experts.experts` {}", r.k, e.experts);
  require(r.groups >= 1 && e.experts % r.groups == 0, "`experts.router.groups` {}: must divide `experts.experts` {}",
          r.groups, e.experts);
  const std::int64_t group = e.experts / r.groups;
  require(r.keep_groups >= 1 && r.keep_groups <= r.groups, "`experts.router.keep_groups` {}: must be 1 to {} groups",
          r.keep_groups, r.groups);
  require(r.k <= r.keep_groups * group,
          "`experts.router.keep_groups` {}: groups of {} experts hold fewer than `experts.router.k` {}", r.keep_groups,
          group, r.k);
  require(r.groups == 1 || (r.group_best >= 1 && r.group_best <= group),
          "`experts.router.group_best` {}: must be 1 to the {} experts of a group", r.group_best, group);
  require(!e.expert_bias || r.score == RouterSpec::Score::sigmoid,
          "`experts.expert_bias`: only sigmoid scores are corrected by a bias; set `experts.router.score` sigmoid");
  require(!e.bias || e.shared_ffn == 0,
          "`experts.bias`: a shared expert has no biases; drop it or `experts.shared_ffn`");
}

}  // namespace

void check_config(const ModelConfig& c) {
  const Pattern pattern = parse_pattern(c.pattern);
  require_positive(c.hidden, "hidden");
  require_positive(c.vocabulary, "vocabulary");
  require(c.embedding_rows() >= c.vocabulary, "`padded_vocabulary` {}: must be at least the vocabulary of {}",
          c.embedding_rows(), c.vocabulary);
  require(c.mtp_loss_factor > 0, "`mtp_loss_factor` {}: must be above 0", c.mtp_loss_factor);
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
  if (count(Symbol::mlp) > 0) require_positive(c.mlp.ffn, "mlp.ffn");
  if (count(Symbol::experts) > 0) check_experts(c.experts);
}

}  // namespace weft
