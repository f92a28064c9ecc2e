// The state-space scan of Mamba-2, forward. With s the running sums of d a in a chunk, H0 the state before it:
//   y_t = sum over j <= t of exp(s_t - s_j) (C_t . B_j) d_j x_j + exp(s_t) H0 C_t + D x_t
// Scratch of a thread: chunk * (2 N + 2 chunk + 3 block P) elements.
#include "weft/device/cpu/kernels/state_scan_chunks.h"

namespace weft::WEFT_ISA {

namespace {

// One chunk of one group.
template <class T, class S>
class ScanForward {
 public:
  ScanForward(const ScanShape& shape, std::int64_t c, std::int64_t group)
      : shape_(shape),
        c_(c),
        group_(group),
        begin_(shape.chunks.begin(c)),
        n_(shape.chunks.size(c)),
        chunk_(shape.chunks.chunk) {
    Carver count(nullptr);
    carve(count);
    Carver carver(thread_scratch(ScratchUse::other, count.used()));
    carve(carver);
  }

  void run() {
    const std::int64_t N = shape_.N;
    copy_in<S>(shape_.x.B, begin_, n_, group_ * N, N, B_);
    copy_in<S>(shape_.x.C, begin_, n_, group_ * N, N, C_);
    lower_outer<T>(n_, N, {C_, N}, {B_, N}, CB_, chunk_);
    const std::int64_t first = group_ * shape_.per_group, end = first + shape_.per_group;
    for (std::int64_t head = first; head < end; head += shape_.block) heads(head, std::min(shape_.block, end - head));
  }

 private:
  void carve(Carver& carver) {
    steps_.carve(carver, chunk_);
    B_ = carver.take<T>(chunk_ * shape_.N);
    C_ = carver.take<T>(chunk_ * shape_.N);
    CB_ = carver.take<T>(chunk_ * chunk_);
    M_ = carver.take<T>(chunk_ * chunk_);
    x_ = carver.take<T>(chunk_ * shape_.block * shape_.P);
    y_ = carver.take<T>(chunk_ * shape_.block * shape_.P);
    before_ = carver.take<T>(chunk_ * shape_.block * shape_.P);
  }

  void heads(std::int64_t head, std::int64_t count) {
    const std::int64_t P = shape_.P, N = shape_.N, width = count * P;
    copy_in<S>(shape_.x.x, begin_, n_, head * P, width, x_);
    product<T>(n_, width, N, Matrix<T>{C_, N}, turned<T>(shape_.template state<T>(shape_.x.states, c_, head), N),
               before_, width);
    const T* D = optional<const T>(shape_.x.D);
    for (std::int64_t h = 0; h < count; ++h) {
      steps_.template set<S>(shape_, head + h, begin_, n_);
      steps_.decay.matrix(n_, 0, M_, chunk_);
      for (std::int64_t t = 0; t < n_; ++t) {
        T* M = M_ + t * chunk_;
        const T* CB = CB_ + t * chunk_;
#pragma omp simd
        for (std::int64_t j = 0; j <= t; ++j) M[j] *= CB[j] * steps_.dt[j];
        for (std::int64_t j = t + 1; j < strip_end(t, n_); ++j) M[j] = 0;
      }
      lower_times<T>(n_, P, M_, chunk_, {x_ + h * P, width}, y_ + h * P, width);
      const T skip = D != nullptr ? D[head + h] : T{0};
      for (std::int64_t t = 0; t < n_; ++t) {
        const std::int64_t at = t * width + h * P;
        const T decay = steps_.decay.from_start[t];
        S* y = row<S>(shape_.x.y, begin_ + t) + (head + h) * P;
#pragma omp simd
        for (std::int64_t p = 0; p < P; ++p) y[p] = narrow<S>(y_[at + p] + decay * before_[at + p] + skip * x_[at + p]);
      }
    }
  }

  const ScanShape& shape_;
  std::int64_t c_, group_, begin_, n_, chunk_;
  Steps<T> steps_;
  T *B_, *C_, *CB_, *M_, *x_, *y_, *before_;
};

}  // namespace

void state_scan(Stream& stream, const StateScan& op) {
  if (op.x.rows() == 0) return;
  check_arguments("state_scan", op);
  const ScanShape shape(op);
  with_storage("state_scan", op.x.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    using T = Accumulator<S>;
    carry_states<T, S>(stream, shape, op.x, op.B, op.states, false);
    for_each_task(stream, shape.chunks.count() * op.groups,
                  [&](std::int64_t task) { ScanForward<T, S>(shape, task / op.groups, task % op.groups).run(); });
  });
}

}  // namespace weft::WEFT_ISA
