// The gated delta rule, backward, from the last chunk to the first. With the names of delta_rule_chunks.h, F = to_end and
// dS the gradient of the state after the chunk:
//   dU = P^T dy + F (K dS);   dR = (I + A)^-T dU;   dA = -dR U^T;   dZ = dv = beta dR;   dP = dy U^T
//   X_tj = dP_tj D_tj,   Y_tj = dA_tj beta_t D_tj
//   dq = E dy S0^T + X k;   dk = -E dZ S0^T + F U dS^T + X^T q + (Y + Y^T) k;   before: carry dS + q^T E dy - k^T E dZ
//   dbeta_t = dR_t . Z_t + sum_j dA_tj D_tj (k_t . k_j)
//   ds_t = sum_j (dP P + dA A)_tj - sum_i (dP P + dA A)_it + E_t (dy_t . S0^T q_t - dZ_t . S0^T k_t) - e_t,
//   e_t = F_t u_t . dS^T k_t;   ds_last += sum of e + carry dS . S0
// Scratch of a thread: chunk * (4 dim + 10 chunk + 12 value_dim) + r dim value_dim elements.
#include "weft/device/cpu/kernels/delta_rule_chunks.h"

namespace weft::WEFT_ISA {

namespace {

template <class T, class S>
class DeltaBackward : public DeltaChunk<T, S> {
  using Base = DeltaChunk<T, S>;
  using Base::A_, Base::before_, Base::begin_, Base::beta_, Base::c_, Base::chunk_, Base::decay_, Base::keys_,
      Base::key_head_, Base::KK_, Base::n_, Base::P_, Base::queries_, Base::R_, Base::rate_, Base::shape_, Base::slope_,
      Base::solve_, Base::U_, Base::Z_;

 public:
  DeltaBackward(const DeltaShape& shape, const DeltaRuleBackward& op, std::int64_t key_head)
      : Base(shape, key_head), op_(op) {
    Carver count(nullptr);
    carve(count);
    Carver carver(thread_scratch(ScratchUse::other, count.used()));
    carve(carver);
  }

  void run(std::int64_t sequence) {
    const std::int64_t per = shape_.chunks.per_sequence(), first = key_head_ * shape_.r, K = shape_.K;
    clear(dS_, shape_.r * K * shape_.V);
    for (std::int64_t c = (sequence + 1) * per - 1; c >= sequence * per; --c) {
      Base::enter(c);
      clear(X_, n_ * chunk_);
      clear(Y_, n_ * chunk_);
      clear(dkeys_, 2 * n_ * K);
      for (std::int64_t i = 0; i < shape_.r; ++i) one(first + i, dS_ + i * K * shape_.V);
      T* dqueries = dkeys_ + n_ * K;
      lower_times<T>(n_, K, X_, chunk_, {keys_, K}, dqueries, K, Add::yes);
      lower_turned_times<T>(n_, K, X_, chunk_, {queries_, K}, dkeys_, K, Add::yes);
      lower_times<T>(n_, K, Y_, chunk_, {keys_, K}, dkeys_, K, Add::yes);
      lower_turned_times<T>(n_, K, Y_, chunk_, {keys_, K}, dkeys_, K, Add::yes);
      copy_out<S>(dkeys_, op_.dk, begin_, n_, key_head_ * K, K);
      copy_out<S>(dqueries, op_.dq, begin_, n_, key_head_ * K, K);
    }
  }

 private:
  void carve(Carver& carver) {
    const std::int64_t K = shape_.K, V = shape_.V;
    Base::carve(carver);
    dS_ = carver.take<T>(shape_.r * K * V);
    dkeys_ = carver.take<T>(2 * chunk_ * K);
    for (T** at : {&X_, &Y_, &D_, &dP_, &dA_}) *at = carver.take<T>(chunk_ * chunk_);
    for (T** at : {&dy_, &dU_, &dR_, &KdS_}) *at = carver.take<T>(chunk_ * V);
    both_ = carver.take<T>(2 * chunk_ * V);
    columns_ = carver.take<T>(chunk_);
    ds_ = carver.take<double>(chunk_);
    dbeta_ = carver.take<double>(chunk_);
  }

  void one(std::int64_t head, T* dS) {
    const std::int64_t K = shape_.K, V = shape_.V;
    const T* S0 = shape_.template state<T>(c_, head);
    Base::solve(head);
    decay_.matrix(n_, 0, D_, chunk_);
    copy_in<S>(op_.dy, begin_, n_, head * V, V, dy_);

    // dU, and what goes to the state after the chunk
    product<T>(n_, V, K, Matrix<T>{keys_, K}, Matrix<T>{dS, V}, KdS_, V);
    double reach = 0;
    for (std::int64_t t = 0; t < n_; ++t) {
      const T F = decay_.to_end[t];
      const bool last = t + 1 == n_;  // its way to the state has no decay
      const double e = last ? 0 : static_cast<double>(F * dot<T>(KdS_ + t * V, U_ + t * V, V));
      ds_[t] = -e;
      reach += e;
#pragma omp simd
      for (std::int64_t i = t * V; i < (t + 1) * V; ++i) {
        dU_[i] = F * KdS_[i];
        R_[i] = F * U_[i];  // R is no longer needed
      }
    }
    if (decay_.carry != 0) reach += static_cast<double>(decay_.carry * dot<T>(dS, S0, K * V));
    lower_turned_times<T>(n_, V, P_, chunk_, {dy_, V}, dU_, V, Add::yes);
    lower_turned_times<T>(n_, V, solve_, chunk_, {dU_, V}, dR_, V);
    product<T>(n_, K, V, Matrix<T>{R_, V}, turned<T>(dS, V), dkeys_, K, Add::yes);

    // Pairs of tokens
    lower_outer<T>(n_, V, {dy_, V}, {U_, V}, dP_, chunk_);
    lower_outer<T>(n_, V, {dR_, V}, {U_, V}, dA_, chunk_);
    std::fill_n(columns_, n_, T{0});
    for (std::int64_t t = 0; t < n_; ++t) pairs(t);
    for (std::int64_t t = 0; t < n_; ++t) ds_[t] -= static_cast<double>(columns_[t]);

    // From the state before the chunk: both_ = [-E dZ; E dy]
    for (std::int64_t t = 0; t < n_; ++t) {
      const T E = decay_.from_start[t], beta = beta_[t];
      const T *dR = dR_ + t * V, *dy = dy_ + t * V;
      T *down = both_ + t * V, *up = both_ + (n_ + t) * V;
      S* dv = row<S>(op_.dv, begin_ + t) + head * V;
#pragma omp simd
      for (std::int64_t i = 0; i < V; ++i) {
        const T dz = beta * dR[i];
        dv[i] = narrow<S>(dz);
        down[i] = -E * dz;
        up[i] = E * dy[i];
      }
      dbeta_[t] += static_cast<double>(dot<T>(dR, Z_ + t * V, V));
      ds_[t] += static_cast<double>(dot<T>(down, before_ + t * V, V) + dot<T>(up, before_ + (n_ + t) * V, V));
    }
    ds_[n_ - 1] += reach;
    product<T>(2 * n_, K, V, Matrix<T>{both_, V}, turned<T>(S0, V), dkeys_, K, Add::yes);
    const T carry = decay_.carry;
#pragma omp simd
    for (std::int64_t i = 0; i < K * V; ++i) dS[i] *= carry;
    product<T>(K, V, 2 * n_, turned<T>(keys_, K), Matrix<T>{both_, V}, dS, V, Add::yes);
    finish(head);
  }

  // Row t of the pairs: X and Y gain, ds and dbeta begin, columns_ gathers what other tokens lose.
  void pairs(std::int64_t t) {
    const T *D = D_ + t * chunk_, *P = P_ + t * chunk_, *A = A_ + t * chunk_, *KK = KK_ + t * chunk_;
    T *dP = dP_ + t * chunk_, *dA = dA_ + t * chunk_;
    T* __restrict X = X_ + t * chunk_, * __restrict Y = Y_ + t * chunk_, * __restrict columns = columns_;
    const T beta = beta_[t];
    X[t] += dP[t];  // a token with itself: no decay, so nothing for ds
    ds_[t] += static_cast<double>(lane_sum<T>(
        t, [&](std::int64_t j) __attribute__((always_inline)) {
          const T loss = dP[j] * P[j] - dA[j] * A[j];
          X[j] += dP[j] * D[j];
          Y[j] -= dA[j] * beta * D[j];
          columns[j] += loss;
          return loss;
        }));
    dbeta_[t] = -static_cast<double>(lane_sum<T>(
        t, [&](std::int64_t j) __attribute__((always_inline)) { return dA[j] * D[j] * KK[j]; }));
  }

  void finish(std::int64_t head) {
    double sum = 0, dlog = 0, dbias = 0;  // sum: gradient of g_t
    for (std::int64_t t = n_ - 1; t >= 0; --t) {
      sum += ds_[t];
      const double g = decay_.sums[t] - (t > 0 ? decay_.sums[t - 1] : 0);
      dlog += sum * g;
      const double raw = sum * rate_ * slope_[t], beta = static_cast<double>(beta_[t]);
      dbias += raw;
      row<S>(op_.da, begin_ + t)[head] = narrow<S>(static_cast<T>(raw));
      row<S>(op_.db, begin_ + t)[head] = narrow<S>(static_cast<T>(dbeta_[t] * beta * (1 - beta)));
    }
    T* sums = row<T>(op_.sums, c_) + head;
    sums[0] = static_cast<T>(dlog);
    sums[shape_.x.heads] = static_cast<T>(dbias);
  }

  const DeltaRuleBackward& op_;
  T *dS_, *dkeys_, *X_, *Y_, *D_, *dP_, *dA_, *dy_, *dU_, *dR_, *KdS_, *both_, *columns_;
  double *ds_, *dbeta_;
};

}  // namespace

void delta_rule_backward(Stream& stream, const DeltaRuleBackward& op) {
  constexpr const char* name = "delta_rule_backward";
  const DeltaRule& x = op.forward;
  check_arguments(name, op);
  const DeltaShape shape(x);
  with_storage(name, x.q.dtype, [&](auto type) {
    using S = typename decltype(type)::type;
    using T = Accumulator<S>;
    for_each_task(stream, shape.chunks.sequences() * x.key_heads, [&](std::int64_t task) {
      DeltaBackward<T, S>(shape, op, task % x.key_heads).run(task / x.key_heads);
    });
    add_chunk_sums<T>(op.sums, shape.chunks.count(), x.heads, {&op.dA_log, &op.ddt_bias}, op.store);
  });
}

}  // namespace weft::WEFT_ISA
