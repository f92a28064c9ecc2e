#include "weft/model/context_checks.h"

#include "weft/base/error.h"

namespace weft {

namespace {

// heads: of a tensor rank. Those of queries, values and states.
void require_divides(std::int64_t heads, const char* field, std::int64_t ranks, const char* why) {
  if (heads % ranks != 0)
    throw UserError("`{}` {} on a tensor rank: {} exchanges them among `context_ranks` {}; use a multiple of it", field,
                    heads, why, ranks);
}

// Those of keys, of which several ranks may have the same.
void require_shares(std::int64_t heads, const char* field, std::int64_t ranks, const char* why) {
  if (heads % ranks != 0 && ranks % heads != 0)
    throw UserError("`{}` {} on a tensor rank: {} exchanges them among `context_ranks` {}; use a multiple or a divisor",
                    field, heads, why, ranks);
}

}  // namespace

void check_context_ranks(const ModelConfig& config, const Pattern& pattern, const ModuleOptions& options) {
  const Layout& layout = options.layout;
  const std::int64_t ranks = layout.size_of(layout.context_ranks()), tensor = layout.size_of(layout.tensor_ranks());
  if (ranks == 1) return;
  const auto has = [&](Symbol symbol) { return pattern.counts.at(symbol) > 0; };
  const auto share = [&](std::int64_t heads) { return (heads + tensor - 1) / tensor; };
  const std::int64_t parts = 2 * ranks * (options.sequence_parallel ? tensor : 1);
  if (options.length % parts != 0)
    throw UserError(
        "`length` {}: `context_ranks` {}{} cut a sequence into {} parts of one length; use a multiple of it",
        options.length, ranks, options.sequence_parallel ? fmt::format(" and `tensor_ranks` {}", tensor) : "", parts);
  if (has(Symbol::sparse_attention)) {
    require_divides(share(config.latent_attention.heads), "latent_attention.heads", ranks, "sparse attention");
    if (const double factor = config.latent_attention.indexer.loss_factor; factor > 0)
      throw UserError(
          "`latent_attention.indexer.loss_factor` {}: an indexer does not learn on `context_ranks` {} yet; use 0, or "
          "one "
          "rank",
          factor, ranks);
  }
  for (const ContextTransfer transfer : options.context_transfers) {
    if (transfer < ContextTransfer::a2a) continue;
    const bool both = transfer == ContextTransfer::a2a_p2p;
    const std::int64_t exchange = both ? layout.size_of(layout.head_ranks()) : ranks;
    const char* what = both ? "attention by a2a+p2p" : "attention by a2a";
    if (has(Symbol::attention)) {
      const auto check = [&](const AttentionSpec& a) {
        require_divides(share(a.heads), "attention.heads", exchange, what);
        require_shares(share(a.kv_heads), "attention.kv_heads", exchange, what);
      };
      check(config.attention);
      for (const auto& [physical, spec] : config.attention_at) check(spec);
    }
    if (has(Symbol::latent_attention))
      require_divides(share(config.latent_attention.heads), "latent_attention.heads", exchange, what);
  }
  if (has(Symbol::mamba)) {
    require_divides(share(config.mamba.heads), "mamba.heads", ranks, "a Mamba layer");
    require_divides(share(config.mamba.groups), "mamba.groups", ranks, "a Mamba layer");
    if (!config.mamba.norm_by_group)
      throw UserError("`context_ranks` {}: the norm of a Mamba layer over its whole width is not divided yet; use 1",
                      ranks);
  }
  if (has(Symbol::gated_delta)) {
    require_divides(share(config.delta_net.heads), "delta_net.heads", ranks, "a gated delta net");
    require_shares(share(config.delta_net.key_heads), "delta_net.key_heads", ranks, "a gated delta net");
  }
}

}  // namespace weft
