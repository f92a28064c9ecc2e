// The indexer's own loss, in two passes: queries by themselves (the loss, d(score), dq, dw), then the gradients of the
// keys, each sequence by one thread in the order of queries.
#include <atomic>

#include "weft/device/cpu/kernels/attention_blocks.h"
#include "weft/device/cpu/kernels/indexer.h"
#include "weft/device/operations/sparse_attention.h"

namespace weft::WEFT_ISA {

namespace {

// What one query needs: target, scores, and the indexer's products of every head and chosen key.
template <class Acc>
struct Space {
  Acc *target, *scores, *products, *sums;
  static std::size_t bytes(std::int64_t K, std::int64_t heads, std::int64_t dim) {
    return static_cast<std::size_t>(K * (2 + heads) + dim) * sizeof(Acc);
  }
  Space(void* at, std::int64_t K, std::int64_t heads)
      : target(static_cast<Acc*>(at)), scores(target + K), products(scores + K), sums(products + K * heads) {}
};

// The attention's probabilities of the chosen keys, averaged over the heads of all ranks.
template <class T, class Acc>
void average_attention(const SparseAttention& op, std::int64_t t, const KeyRow& chosen, std::int64_t heads,
                       Acc* target) {
  const Attention& x = op.attention;
  const std::int64_t group = x.heads / x.kv_heads;
  std::fill_n(target, chosen.count, Acc{0});
  for (std::int64_t h = 0; h < x.heads; ++h) {
    const T* q = row<T>(x.q, t) + h * x.dim;
    const Acc lse = row<Acc>(x.lse, h)[t];
    for (std::int64_t j = 0; j < chosen.count; ++j) {
      const T* k = row<T>(x.k, chosen.keys[j]) + h / group * x.dim;
      target[j] += fast_exp_negative(static_cast<Acc>(x.scale) * dot(q, k, x.dim) - lse);
    }
  }
  for (std::int64_t j = 0; j < chosen.count; ++j) target[j] /= static_cast<Acc>(heads);
}

struct Queries {
  std::int64_t first, end;
  bool has(std::int64_t t) const { return t >= first && t < end; }
};
Queries queries_of(const IndexerLoss& op) {
  if (op.means.given()) return {op.first, op.first + op.queries};
  return {0, op.indexer.q.rows()};
}

// Nothing of a query that another rank has.
template <class T, class Acc>
void skip_query(const IndexerLoss& op, std::int64_t t, std::int64_t K) {
  std::fill_n(row<Acc>(op.scratch, t), K + 1, Acc{0});
  std::fill_n(row<T>(op.dq, t), op.indexer.heads * op.indexer.dim, T{});
  std::fill_n(row<T>(op.dw, t), op.indexer.heads, T{});
}

// Query t: its loss; d(score) of its keys go to `dscores`.
template <class T, class Acc>
Acc query_loss(const IndexerLoss& op, std::int64_t t, double factor, const Space<Acc>& space, Acc* dscores) {
  const Indexer& x = op.indexer;
  const KeyRow chosen("indexer_loss", op.attention.keys, t);
  const std::int64_t n = chosen.count;
  const Acc scale = static_cast<Acc>(x.scale);
  if (op.means.given())
    std::copy_n(row<Acc>(op.means, t - op.first), n, space.target);
  else
    average_attention<T>(op.attention, t, chosen, op.attention.attention.heads, space.target);
  std::fill_n(space.scores, n, Acc{0});
  const T* w = row<T>(x.w, t);
  for (std::int64_t h = 0; h < x.heads; ++h)
    for (std::int64_t j = 0; j < n; ++j) {
      const Acc product = dot(row<T>(x.q, t) + h * x.dim, row<T>(x.k, chosen.keys[j]), x.dim);
      space.products[h * n + j] = product > Acc{0} ? product : Acc{0};
      space.scores[j] += scale * widen_to<Acc>(w[h]) * space.products[h * n + j];
    }
  Acc highest = -std::numeric_limits<Acc>::infinity(), sum = 0, loss = 0;
  for (std::int64_t j = 0; j < n; ++j) highest = space.scores[j] > highest ? space.scores[j] : highest;
  for (std::int64_t j = 0; j < n; ++j) sum += fast_exp_negative(space.scores[j] - highest);
  const Acc log_sum = n > 0 ? fast_log(sum) : Acc{0};
  for (std::int64_t j = 0; j < n; ++j) {
    const Acc p = space.target[j], log_r = space.scores[j] - highest - log_sum;
    if (p > Acc{0}) loss += p * (fast_log(p) - log_r);
    dscores[j] = static_cast<Acc>(factor) * (fast_exp_negative(log_r) - p);
  }
  T *dq = row<T>(op.dq, t), *dw = row<T>(op.dw, t);
  for (std::int64_t h = 0; h < x.heads; ++h) {
    Acc along = 0;
    std::fill_n(space.sums, x.dim, Acc{0});
    for (std::int64_t j = 0; j < n; ++j) {
      const Acc product = space.products[h * n + j];
      along += dscores[j] * product;
      if (product > Acc{0})
        add_scaled(space.sums, scale * widen_to<Acc>(w[h]) * dscores[j], row<T>(x.k, chosen.keys[j]), x.dim);
    }
    dw[h] = narrow<T>(scale * along);
    store_row(space.sums, dq + h * x.dim, x.dim);
  }
  return loss;
}

// dk of tokens [begin, end); sums: [end - begin, dim].
template <class T, class Acc>
void key_gradients(const IndexerLoss& op, std::int64_t begin, std::int64_t end, Acc* sums) {
  const Indexer& x = op.indexer;
  const Acc scale = static_cast<Acc>(x.scale);
  std::fill_n(sums, (end - begin) * x.dim, Acc{0});
  const Queries own = queries_of(op);
  for (std::int64_t t = std::max(begin, own.first); t < std::min(end, own.end); ++t) {
    const KeyRow chosen("indexer_loss", op.attention.keys, t);
    const Acc* dscores = row<Acc>(op.scratch, t);
    for (std::int64_t j = 0; j < chosen.count; ++j) {
      const std::int64_t key = chosen.keys[j];
      require(key >= begin && key < end, "indexer_loss", "a key of another sequence");
      for (std::int64_t h = 0; h < x.heads; ++h) {
        const T* q = row<T>(x.q, t) + h * x.dim;
        if (dot(q, row<T>(x.k, key), x.dim) > Acc{0})
          add_scaled(sums + (key - begin) * x.dim, scale * widen_to<Acc>(row<T>(x.w, t)[h]) * dscores[j], q, x.dim);
      }
    }
  }
  for (std::int64_t t = begin; t < end; ++t) store_row(sums + (t - begin) * x.dim, row<T>(op.dk, t), x.dim);
}

}  // namespace

void attention_means(Stream& stream, const AttentionMeans& op) {
  constexpr const char* name = "attention_means";
  check_arguments(name, op);
  const Attention& a = op.attention.attention;
  const std::int64_t K = columns_of(op.attention.keys);
  with_storage(name, a.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, a.q.rows(), K * a.heads * a.dim, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const KeyRow chosen(name, op.attention.keys, t);
        Acc* means = row<Acc>(op.means, t);
        average_attention<T>(op.attention, t, chosen, op.heads, means);
        std::fill_n(means + chosen.count, K - chosen.count, Acc{0});
      }
    });
  });
}

void indexer_loss(Stream& stream, const IndexerLoss& op) {
  constexpr const char* name = "indexer_loss";
  const Indexer& x = op.indexer;
  const std::int64_t tokens = x.q.rows();
  check_arguments(name, op);
  const std::int64_t K = columns_of(op.attention.keys);
  const double factor = op.factor * read_scalar(name, op.scale);
  const Attention& a = op.attention.attention;
  const Queries own = queries_of(op);
  const std::int64_t length = !a.boundaries.given() && a.length > 0 ? a.length : tokens;
  with_storage(name, x.q.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    using Acc = Accumulator<T>;
    split_rows(stream, tokens, K * (x.heads * x.dim + a.heads * a.dim), [&](std::int64_t begin, std::int64_t end) {
      const Space<Acc> space(thread_scratch(Space<Acc>::bytes(K, x.heads, x.dim)), K, x.heads);
      for (std::int64_t t = begin; t < end; ++t) {
        if (!own.has(t)) {
          skip_query<T, Acc>(op, t, K);
          continue;
        }
        Acc* mine = row<Acc>(op.scratch, t);
        mine[K] = query_loss<T>(op, t, factor, space, mine);
      }
    });
    split_rows(stream, (tokens + length - 1) / length, elements_per_thread, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t s = begin; s < end; ++s) {
        const std::int64_t last = std::min((s + 1) * length, tokens);
        const auto bytes = static_cast<std::size_t>((last - s * length) * x.dim) * sizeof(Acc);
        key_gradients<T>(op, s * length, last, static_cast<Acc*>(thread_scratch(bytes)));
      }
    });
    double sum = 0;
    for (std::int64_t t = 0; t < tokens; ++t) sum += static_cast<double>(row<Acc>(op.scratch, t)[K]);
    Acc& loss = *op.loss.as<Acc>();
    loss = static_cast<Acc>(factor * sum) + (op.store == Store::add ? loss : Acc{0});
  });
}

}  // namespace weft::WEFT_ISA
