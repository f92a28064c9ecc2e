// The indexer's choice: for a block of queries, scores of all keys they see (heads in turns, keys in blocks), then the
// best of every query. Scratch of a thread: the scores of one block of queries, [length of the document][query_block],
// and its packed queries.
#include <atomic>

#include "weft/device/cpu/kernels/attention_blocks.h"
#include "weft/device/cpu/kernels/indexer.h"
#include "weft/device/operations/sparse_attention.h"

namespace weft::WEFT_ISA {

namespace {

template <class T, class S>
class Chooser {
 public:
  Chooser(const ChooseKeys& op, const Limits& limits, std::int64_t query, std::int64_t count)
      : op_(op), x_(op.indexer), limits_(limits), query_(query), count_(count) {
    first_ = limits.document(query);
    for (std::int64_t i = 1; i < count; ++i) first_ = std::min(first_, limits.document(query + i));
    keys_seen_ = query + count - first_;
    Carver sizes(nullptr);
    carve(sizes);
    Carver carver(thread_scratch(ScratchUse::left, sizes.used()));
    carve(carver);
  }

  void run() {
    const std::int64_t room = x_.dim * block;
    for (std::int64_t h = 0; h < x_.heads; ++h)
      pack_rows<query_block<T>>(head_of<S>(x_.q, h, x_.dim), x_.q.stride, query_, count_, x_.dim, queries_ + h * room);
    pack_weights();
    const S* k = static_cast<const S*>(x_.k.data);
    for (std::int64_t key = 0; key < keys_seen_; key += key_block) {
      const std::int64_t n = std::min(key_block, keys_seen_ - key);
      pack_rows<tile_rows>(k, x_.k.stride, first_ + key, n, x_.dim, keys_);
      std::fill_n(scores_ + key * block, n * block, T{0});
      for (std::int64_t h = 0; h < x_.heads; ++h) add_head(h, key, n);
    }
    for (std::int64_t i = 0; i < count_; ++i) choose(i);
  }

  static constexpr std::int64_t block = query_block<T>;

 private:
  void carve(Carver& carver) {
    queries_ = carver.take<T>(x_.heads * x_.dim * block);
    weights_ = carver.take<T>(x_.heads * block);
    keys_ = carver.take<T>(key_block * x_.dim);
    tile_ = carver.take<T>(key_block * block);
    scores_ = carver.take<T>((keys_seen_ + key_block) * block);
    mine_ = carver.take<T>(keys_seen_);
    order_ = carver.take<std::int32_t>(keys_seen_);
  }

  void pack_weights() {
    for (std::int64_t h = 0; h < x_.heads; ++h)
      for (std::int64_t i = 0; i < block; ++i)
        weights_[h * block + i] =
            i < count_ ? static_cast<T>(x_.scale) * widen_to<T>(row<S>(x_.w, query_ + i)[h]) : T{0};
  }

  void add_head(std::int64_t head, std::int64_t key, std::int64_t n) {
    for (std::int64_t t = 0; t < n; t += tile_rows)
      micro_tile<T>(x_.dim, keys_ + t * x_.dim, queries_ + head * x_.dim * block, tile_ + t * block,
                    std::min<std::int64_t>(tile_rows, n - t));
    const T* __restrict weights = weights_ + head * block;
    T* __restrict scores = scores_ + key * block;
    for (std::int64_t j = 0; j < n; ++j)
#pragma omp simd
      for (std::int64_t i = 0; i < block; ++i) {
        const T product = tile_[j * block + i];
        scores[j * block + i] += weights[i] * (product > T{0} ? product : product != product ? product : T{0});
      }
  }

  void choose(std::int64_t i) {
    const std::int64_t t = query_ + i, begin = limits_.document(t), seen = t + 1 - begin;
    const std::int64_t K = columns_of(op_.keys);
    std::int32_t* out = row<std::int32_t>(op_.keys, t);
    for (std::int64_t j = 0; j < seen; ++j) {
      const T score = scores_[(begin - first_ + j) * block + i];
      mine_[j] = score != score ? -std::numeric_limits<T>::infinity() : score;
      order_[j] = static_cast<std::int32_t>(j);
    }
    const auto better = [this](std::int32_t a, std::int32_t b) {
      return mine_[a] > mine_[b] || (mine_[a] == mine_[b] && a < b);
    };
    const std::int64_t kept = std::min(seen, K);
    if (kept < seen) {
      std::nth_element(order_, order_ + kept, order_ + seen, better);
      std::sort(order_, order_ + kept);
    }
    for (std::int64_t j = 0; j < kept; ++j) out[j] = static_cast<std::int32_t>(begin) + order_[j];
    std::fill(out + kept, out + K, -1);
  }

  const ChooseKeys& op_;
  const Indexer& x_;
  const Limits& limits_;
  std::int64_t query_, count_, first_, keys_seen_;
  T *queries_, *weights_, *keys_, *tile_, *scores_, *mine_;
  std::int32_t* order_;
};

}  // namespace

void choose_keys(Stream& stream, const ChooseKeys& op) {
  constexpr const char* name = "choose_keys";
  const Indexer& x = op.indexer;
  const std::int64_t tokens = x.q.rows();
  if (tokens == 0) return;
  check_arguments(name, op);
  const Limits limits{optional<std::int32_t>(op.boundaries), op.length, 0};
  with_storage(name, x.q.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    using T = Accumulator<S>;
    // Blocks of queries begin at fixed places; which thread takes one does not matter.
    const std::int64_t blocks = (tokens + Chooser<T, S>::block - 1) / Chooser<T, S>::block;
    std::atomic<std::int64_t> next{0};
    const auto work = [&](int) {
      for (std::int64_t b = next++; b < blocks; b = next++) {
        const std::int64_t query = (blocks - 1 - b) * Chooser<T, S>::block;  // later queries see more keys
        Chooser<T, S>(op, limits, query, std::min(Chooser<T, S>::block, tokens - query)).run();
      }
    };
    if (blocks == 1 || team_of(stream).size() == 1) return work(0);
    team_of(stream).run(std::cref(work));
  });
}

}  // namespace weft::WEFT_ISA
