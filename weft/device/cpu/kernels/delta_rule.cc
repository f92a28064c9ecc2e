// The gated delta rule, forward. Formulas: delta_rule_chunks.h.
// Scratch of a thread: chunk * (2 dim + 5 chunk + 6 value_dim) elements.
#include "weft/device/cpu/kernels/delta_rule_chunks.h"

namespace weft::WEFT_ISA {

namespace {

template <class T, class S>
class DeltaForward : public DeltaChunk<T, S> {
  using Base = DeltaChunk<T, S>;
  using Base::before_, Base::begin_, Base::c_, Base::chunk_, Base::decay_, Base::keys_, Base::n_, Base::P_, Base::R_,
      Base::shape_, Base::U_, Base::Z_;

 public:
  DeltaForward(const DeltaShape& shape, std::int64_t key_head) : Base(shape, key_head) {
    Carver count(nullptr);
    Base::carve(count);
    Carver carver(thread_scratch(ScratchUse::other, count.used()));
    Base::carve(carver);
  }

  void run(std::int64_t sequence) {
    const std::int64_t per = shape_.chunks.per_sequence(), first = Base::key_head_ * shape_.r;
    for (std::int64_t c = sequence * per; c < (sequence + 1) * per; ++c) {
      Base::enter(c);
      for (std::int64_t head = first; head < first + shape_.r; ++head) {
        if (c == sequence * per) clear(shape_.template state<T>(c, head), shape_.K * shape_.V);
        Base::solve(head);
        store(head);
        if (c + 1 < (sequence + 1) * per) carry(head);
      }
    }
  }

 private:
  void store(std::int64_t head) {
    const std::int64_t V = shape_.V;
    lower_times<T>(n_, V, P_, chunk_, {U_, V}, Z_, V);  // Z is no longer needed
    for (std::int64_t t = 0; t < n_; ++t) {
      const T E = decay_.from_start[t];
      const T *inside = Z_ + t * V, *before = before_ + (n_ + t) * V;
      S* y = row<S>(shape_.x.y, begin_ + t) + head * V;
#pragma omp simd
      for (std::int64_t i = 0; i < V; ++i) y[i] = narrow<S>(inside[i] + E * before[i]);
    }
  }

  void carry(std::int64_t head) {
    const std::int64_t K = shape_.K, V = shape_.V;
    for (std::int64_t t = 0; t < n_; ++t) {
      const T factor = decay_.to_end[t];
#pragma omp simd
      for (std::int64_t i = t * V; i < (t + 1) * V; ++i) R_[i] = factor * U_[i];
    }
    const T* from = shape_.template state<T>(c_, head);
    T* to = shape_.template state<T>(c_ + 1, head);
    const T factor = decay_.carry;
#pragma omp simd
    for (std::int64_t i = 0; i < K * V; ++i) to[i] = factor * from[i];
    product<T>(K, V, n_, turned<T>(keys_, K), Matrix<T>{R_, V}, to, V, Add::yes);
  }
};

}  // namespace

void delta_rule(Stream& stream, const DeltaRule& op) {
  if (op.q.rows() == 0) return;
  check_arguments("delta_rule", op);
  const DeltaShape shape(op);
  with_storage("delta_rule", op.q.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    for_each_task(stream, shape.chunks.sequences() * op.key_heads, [&](std::int64_t task) {
      DeltaForward<Accumulator<S>, S>(shape, task % op.key_heads).run(task / op.key_heads);
    });
  });
}

}  // namespace weft::WEFT_ISA
