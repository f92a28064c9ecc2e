// The state-space scan of Mamba-2, backward. Of a chunk, with H0 the state before it, dH the gradient of the state after
// it, E = from_start, F = to_end, M_tj = D_tj (C_t . B_j) d_j, dM_tj = dy_t . x_j, j <= t:
//   dx_j = sum_t M_tj dy_t + d_j F_j dH B_j + D dy_j
//   dC_t = sum_j G_tj B_j + E_t H0^T dy_t,   dB_j = sum_t G_tj C_t + d_j F_j dH^T x_j,   G_tj = dM_tj D_tj d_j
//   ds_t = sum_j dM_tj M_tj + E_t dy_t . H0 C_t;   ds_j -= sum_t dM_tj M_tj + d_j F_j x_j . dH B_j;
//   ds_last += sum_j d_j F_j x_j . dH B_j + carry dH . H0;   d(d a)_t = sum of ds from t on
// Scratch of a thread: chunk * (6 N + 4 chunk + 4 block P) elements.
#include "weft/device/cpu/kernels/state_scan_chunks.h"

namespace weft::WEFT_ISA {

namespace {

template <class T, class S>
class ScanBackward {
 public:
  ScanBackward(const ScanShape& shape, const StateScanBackward& op, std::int64_t c, std::int64_t group)
      : shape_(shape),
        op_(op),
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
    clear(dCB_, n_ * chunk_);
    clear(dB_, n_ * N);
    clear(dC_, n_ * N);
    const std::int64_t first = group_ * shape_.per_group, end = first + shape_.per_group;
    for (std::int64_t head = first; head < end; head += shape_.block) heads(head, std::min(shape_.block, end - head));
    lower_times<T>(n_, N, dCB_, chunk_, {B_, N}, dC_, N, Add::yes);
    lower_turned_times<T>(n_, N, dCB_, chunk_, {C_, N}, dB_, N, Add::yes);
    copy_out<S>(dB_, op_.dB, begin_, n_, group_ * N, N);
    copy_out<S>(dC_, op_.dC, begin_, n_, group_ * N, N);
  }

 private:
  void carve(Carver& carver) {
    const std::int64_t N = shape_.N, wide = chunk_ * shape_.block * shape_.P;
    steps_.carve(carver, chunk_);
    for (T** at : {&B_, &C_, &dB_, &dC_, &moved_}) *at = carver.take<T>(chunk_ * N);
    for (T** at : {&CB_, &dCB_, &M_, &dM_}) *at = carver.take<T>(chunk_ * chunk_);
    for (T** at : {&x_, &dy_, &dx_, &after_}) *at = carver.take<T>(wide);
    columns_ = carver.take<T>(chunk_);
    ds_ = carver.take<double>(chunk_);
    ddt_ = carver.take<double>(chunk_);
  }

  void heads(std::int64_t head, std::int64_t count) {
    const std::int64_t P = shape_.P, N = shape_.N, width = count * P;
    copy_in<S>(shape_.x.x, begin_, n_, head * P, width, x_);
    copy_in<S>(op_.dy, begin_, n_, head * P, width, dy_);
    // after_ = dH B, for all heads at once
    product<T>(n_, width, N, Matrix<T>{B_, N}, turned<T>(shape_.template state<T>(op_.dstates, c_, head), N), after_,
               width);
    for (std::int64_t h = 0; h < count; ++h) one(head + h, h * P, width);
  }

  // A head whose columns begin at `column` of x_, dy_, dx_ and after_.
  void one(std::int64_t head, std::int64_t column, std::int64_t width) {
    const std::int64_t P = shape_.P, N = shape_.N;
    const T* H0 = shape_.template state<T>(shape_.x.states, c_, head);
    const T* dH = shape_.template state<T>(op_.dstates, c_, head);
    const T *x = x_ + column, *dy = dy_ + column;
    steps_.template set<S>(shape_, head, begin_, n_);
    const Decay<T>& decay = steps_.decay;
    const T* dt = steps_.dt;
    std::fill_n(columns_, n_, T{0});

    // Pairs of tokens inside the chunk.
    decay.matrix(n_, 0, M_, chunk_);
    lower_outer<T>(n_, P, {dy, width}, {x, width}, dM_, chunk_);
    for (std::int64_t t = 0; t < n_; ++t) {
      T *M = M_ + t * chunk_, *dM = dM_ + t * chunk_, *dCB = dCB_ + t * chunk_;
      const T* CB = CB_ + t * chunk_;
      T* __restrict columns = columns_;
#pragma omp simd
      for (std::int64_t j = 0; j < t; ++j) {
        const T undecayed = dM[j], scaled = M[j] * dt[j];
        dM[j] = undecayed * M[j] * CB[j];  // gradient of d_j, from this pair
        columns[j] += dM[j];
        dCB[j] += undecayed * scaled;
        M[j] = scaled * CB[j];
      }
      // A token with itself: no decay, so nothing for ds.
      ddt_[t] = static_cast<double>(dM[t] * CB[t]);
      dCB[t] += dM[t] * dt[t];
      M[t] = dt[t] * CB[t];
      for (std::int64_t j = t + 1; j < strip_end(t, n_); ++j) M[j] = 0;
      ds_[t] = static_cast<double>(dot<T>(dM, dt, t));
    }
    lower_turned_times<T>(n_, P, M_, chunk_, {dy, width}, dx_ + column, width);

    // To the state after the chunk, and from the one before it.
    double to_last = 0;
    product<T>(n_, N, P, Matrix<T>{x, width}, Matrix<T>{dH, N}, moved_, N);
    for (std::int64_t t = 0; t < n_; ++t) {
      const T factor = decay.to_end[t], scaled = factor * dt[t];
      const T reach = factor * dot<T>(moved_ + t * N, B_ + t * N, N);
      T* __restrict dB = dB_ + t * N;
      const T* moved = moved_ + t * N;
#pragma omp simd
      for (std::int64_t i = 0; i < N; ++i) dB[i] += scaled * moved[i];
      const double step = static_cast<double>(dt[t]);
      ddt_[t] += static_cast<double>(columns_[t]) + static_cast<double>(reach);
      ds_[t] -= static_cast<double>(columns_[t]) * step;
      if (t + 1 == n_) break;  // the last token's way to the state has no decay
      ds_[t] -= static_cast<double>(reach) * step;
      to_last += static_cast<double>(reach) * step;
    }
    product<T>(n_, N, P, Matrix<T>{dy, width}, Matrix<T>{H0, N}, moved_, N);
    for (std::int64_t t = 0; t < n_; ++t) {
      const T factor = decay.from_start[t];
      ds_[t] += static_cast<double>(factor * dot<T>(moved_ + t * N, C_ + t * N, N));
      T* __restrict dC = dC_ + t * N;
      const T* moved = moved_ + t * N;
#pragma omp simd
      for (std::int64_t i = 0; i < N; ++i) dC[i] += factor * moved[i];
    }
    ds_[n_ - 1] += to_last;
    if (decay.carry != 0) ds_[n_ - 1] += static_cast<double>(decay.carry * dot<T>(dH, H0, P * N));
    finish(head, column, width);
  }

  void finish(std::int64_t head, std::int64_t column, std::int64_t width) {
    const std::int64_t P = shape_.P;
    const T* D = optional<const T>(shape_.x.D);
    const T skip = D != nullptr ? D[head] : T{0};
    double dD = 0;
    for (std::int64_t t = 0; t < n_; ++t) {
      const T factor = steps_.decay.to_end[t] * steps_.dt[t];
      const std::int64_t at = t * width + column;
      S* dx = row<S>(op_.dx, begin_ + t) + head * P;
#pragma omp simd
      for (std::int64_t p = 0; p < P; ++p)
        dx[p] = narrow<S>(dx_[at + p] + factor * after_[at + p] + skip * dy_[at + p]);
      dD += static_cast<double>(dot<T>(x_ + at, dy_ + at, P));
    }
    double sum = 0, da = 0, dbias = 0;  // sum: gradient of d_t a
    for (std::int64_t t = n_ - 1; t >= 0; --t) {
      sum += ds_[t];
      da += sum * static_cast<double>(steps_.dt[t]);
      const double raw = (ddt_[t] + sum * steps_.rate) * steps_.slope[t];
      dbias += raw;
      row<S>(op_.ddt, begin_ + t)[head] = narrow<S>(static_cast<T>(raw));
    }
    T* sums = row<T>(op_.sums, c_) + head;
    const std::int64_t heads = shape_.x.heads;
    sums[0] = static_cast<T>(da * steps_.rate);  // of A_log
    sums[heads] = static_cast<T>(dbias);
    sums[2 * heads] = static_cast<T>(dD);
  }

  const ScanShape& shape_;
  const StateScanBackward& op_;
  std::int64_t c_, group_, begin_, n_, chunk_;
  Steps<T> steps_;
  T *B_, *C_, *dB_, *dC_, *moved_, *CB_, *dCB_, *M_, *dM_, *x_, *dy_, *dx_, *after_, *columns_;
  double *ds_, *ddt_;
};

}  // namespace

void state_scan_backward(Stream& stream, const StateScanBackward& op) {
  constexpr const char* name = "state_scan_backward";
  const StateScan& x = op.forward;
  check_arguments(name, op);
  const ScanShape shape(x);
  with_storage(name, x.x.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    using T = Accumulator<S>;
    carry_states<T, S>(stream, shape, op.dy, x.C, op.dstates, true);
    for_each_task(stream, shape.chunks.count() * x.groups,
                  [&](std::int64_t task) { ScanBackward<T, S>(shape, op, task / x.groups, task % x.groups).run(); });
    add_chunk_sums<T>(op.sums, shape.chunks.count(), x.heads, {&op.dA_log, &op.ddt_bias, &op.dD}, op.store);
  });
}

}  // namespace weft::WEFT_ISA
