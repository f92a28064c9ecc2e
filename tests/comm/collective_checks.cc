#include "tests/comm/collective_checks.h"

#include <algorithm>

#include "tests/comm/ranks.h"
#include "weft/base/random.h"

namespace weft {

namespace {

template <class T>
T value_of(int rank, std::int64_t index, std::string_view what) {
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(rank), what);
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(philox(key, static_cast<std::uint64_t>(index))[0] >> 4);
  else  // of many sizes, so that the order of a sum shows
    return T(static_cast<float>(random_normal(key, static_cast<std::uint64_t>(index)) * (index % 3 == 0   ? 1000.0
                                                                                         : index % 3 == 1 ? 1.0
                                                                                                          : 0.001)));
}

template <class T>
std::vector<T> values_of(int rank, std::int64_t count, std::string_view what) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(value_of<T>(rank, i, what));
  return values;
}

// One dtype on one group.
template <class T>
class Checks {
 public:
  explicit Checks(Communicator& group) : group_(group), me_(group.rank()), n_(group.size()) {}

  std::uint64_t run() {
    for (const std::int64_t scale : {1, 300}) all_to_all(scale);
    for (const std::int64_t count : {0, 1, 5, 1200}) {
      all_gather_even(count);
      for (const Reduction reduction : {Reduction::sum, Reduction::max}) {
        reduce_scatter(count, reduction);
        all_reduce(count * 7, reduction);
      }
      for (int root = 0; root < n_; ++root) broadcast(count, root);
      if (n_ > 1) ring(count);
    }
    all_gather_uneven();
    if (n_ > 1) pairs();
    group_.barrier(stream_);
    return hash_;
  }

 private:
  // Compares bit for bit and adds to the hash.
  void expect(const char* what, const std::vector<T>& got, const std::vector<T>& expected) {
    for (std::size_t i = 0; i < std::max(got.size(), expected.size()); ++i)
      if (i >= got.size() || i >= expected.size() || std::memcmp(&got[i], &expected[i], sizeof(T)) != 0)
        throw RunError("{} of {} on group '{}', member {} of {}: element {} is wrong", what, name_of(dtype_of<T>()),
                       group_.name(), me_, n_, i);
    for (const T& value : got) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, &value, sizeof(T));
      hash_ = (hash_ ^ bits) * 1099511628211u;
    }
  }

  // Left to right in rank order, in float for bf16: the definition, written out.
  static T reduced(Reduction reduction, int n, std::int64_t index, std::string_view what) {
    if constexpr (std::is_integral_v<T>) {
      T total = value_of<T>(0, index, what);
      for (int p = 1; p < n; ++p) {
        const T next = value_of<T>(p, index, what);
        total = reduction == Reduction::sum
                    ? static_cast<T>(static_cast<std::uint64_t>(total) + static_cast<std::uint64_t>(next))
                    : std::max(total, next);
      }
      return total;
    } else {
      Accumulator<T> total = value_of<T>(0, index, what);
      for (int p = 1; p < n; ++p) {
        const Accumulator<T> next = value_of<T>(p, index, what);
        total = reduction == Reduction::sum ? total + next : std::max(total, next);
      }
      return T(total);
    }
  }

  static std::int64_t count_between(int from, int to, std::int64_t scale) {
    return (from * 5 + to * 3 + 1) % 4 * scale;
  }

  void all_to_all(std::int64_t scale) {
    std::vector<std::int64_t> send_counts, receive_counts;
    std::vector<T> expected;
    for (int p = 0; p < n_; ++p) {
      send_counts.push_back(count_between(me_, p, scale));
      receive_counts.push_back(count_between(p, me_, scale));
      std::int64_t before = 0;  // in the sender's buffer
      for (int q = 0; q < me_; ++q) before += count_between(p, q, scale);
      for (std::int64_t i = 0; i < receive_counts.back(); ++i)
        expected.push_back(value_of<T>(p, before + i, "all_to_all"));
    }
    const HostTensor send(
        values_of<T>(me_, std::accumulate(send_counts.begin(), send_counts.end(), std::int64_t{0}), "all_to_all"));
    // A buffer larger than what comes, as for routed rows.
    const HostTensor receive(dtype_of<T>(), static_cast<std::int64_t>(expected.size()) + 3);
    group_.all_to_all(stream_, send, send_counts, receive, receive_counts);
    std::vector<T> got = receive.values<T>();
    const HostTensor untouched(dtype_of<T>(), 3);
    expect("all_to_all beyond its counts", std::vector<T>(got.end() - 3, got.end()), untouched.values<T>());
    got.resize(expected.size());
    expect("all_to_all", got, expected);
  }

  void all_gather_even(std::int64_t count) {
    std::vector<T> expected;
    for (int p = 0; p < n_; ++p)
      for (const T& value : values_of<T>(p, count, "all_gather")) expected.push_back(value);
    const HostTensor send(values_of<T>(me_, count, "all_gather"));
    const HostTensor receive(dtype_of<T>(), count * n_);
    group_.all_gather(stream_, send, receive);
    expect("all_gather", receive.values<T>(), expected);
    const HostTensor in_place(dtype_of<T>(), count * n_);
    const Tensor mine = in_place.tensor().slice_rows(me_ * count, count);
    if (count > 0) std::memcpy(mine.data, send.tensor().data, mine.bytes());
    group_.all_gather(stream_, mine, in_place);
    expect("all_gather in place", in_place.values<T>(), expected);
  }

  void all_gather_uneven() {
    std::vector<std::int64_t> counts;
    std::vector<T> expected;
    for (int p = 0; p < n_; ++p) {
      counts.push_back(count_between(p, 2, 11));
      for (const T& value : values_of<T>(p, counts.back(), "uneven")) expected.push_back(value);
    }
    const HostTensor send(values_of<T>(me_, counts[static_cast<std::size_t>(me_)], "uneven"));
    const HostTensor receive(dtype_of<T>(), static_cast<std::int64_t>(expected.size()));
    group_.all_gather(stream_, send, receive, counts);
    expect("uneven all_gather", receive.values<T>(), expected);
  }

  void reduce_scatter(std::int64_t count, Reduction reduction) {
    std::vector<T> expected;
    for (std::int64_t i = 0; i < count; ++i)
      expected.push_back(reduced(reduction, n_, me_ * count + i, "reduce_scatter"));
    const HostTensor send(values_of<T>(me_, count * n_, "reduce_scatter"));
    const HostTensor receive(dtype_of<T>(), count);
    group_.reduce_scatter(stream_, send, receive, reduction);
    expect("reduce_scatter", receive.values<T>(), expected);
    expect("what reduce_scatter sent", send.values<T>(), values_of<T>(me_, count * n_, "reduce_scatter"));
    const Tensor mine = send.tensor().slice_rows(me_ * count, count);
    group_.reduce_scatter(stream_, send, mine, reduction);
    expect("reduce_scatter in place", std::vector<T>(mine.as<T>(), mine.as<T>() + count), expected);
  }

  void all_reduce(std::int64_t count, Reduction reduction) {
    std::vector<T> expected;
    for (std::int64_t i = 0; i < count; ++i) expected.push_back(reduced(reduction, n_, i, "all_reduce"));
    const HostTensor send(values_of<T>(me_, count, "all_reduce"));
    const HostTensor receive(dtype_of<T>(), count);
    group_.all_reduce(stream_, send, receive, reduction);
    expect("all_reduce", receive.values<T>(), expected);
    group_.all_reduce(stream_, send, send, reduction);
    expect("all_reduce in place", send.values<T>(), expected);
  }

  void broadcast(std::int64_t count, int root) {
    const HostTensor data(values_of<T>(me_, count, "broadcast"));
    group_.broadcast(stream_, data, root);
    expect("broadcast", data.values<T>(), values_of<T>(root, count, "broadcast"));
  }

  // Everyone sends to the next and receives from the one before, at once.
  void ring(std::int64_t count) {
    const int next = (me_ + 1) % n_, previous = (me_ + n_ - 1) % n_;
    const HostTensor send(values_of<T>(me_, count, "ring")), receive(dtype_of<T>(), count);
    const Transfer both[] = {{Transfer::Direction::send, next, send},
                             {Transfer::Direction::receive, previous, receive}};
    group_.transfer(stream_, both);
    expect("ring", receive.values<T>(), values_of<T>(previous, count, "ring"));
  }

  // Member 0 sends two tensors to each of the others, which answer one by one.
  void pairs() {
    for (int p = 1; p < n_; ++p) {
      if (me_ == 0) {
        const HostTensor first(values_of<T>(p, 4, "first")), second(values_of<T>(p, 9, "second"));
        const HostTensor answer(dtype_of<T>(), 5);
        const Transfer both[] = {{Transfer::Direction::send, p, first}, {Transfer::Direction::send, p, second}};
        group_.transfer(stream_, both);
        group_.receive(stream_, answer, p);
        expect("answer", answer.values<T>(), values_of<T>(p, 5, "answer"));
      } else if (me_ == p) {
        const HostTensor first(dtype_of<T>(), 4), second(dtype_of<T>(), 9);
        group_.receive(stream_, first, 0);
        group_.receive(stream_, second, 0);
        group_.send(stream_, HostTensor(values_of<T>(p, 5, "answer")), 0);
        expect("first of two", first.values<T>(), values_of<T>(p, 4, "first"));
        expect("second of two", second.values<T>(), values_of<T>(p, 9, "second"));
      }
    }
  }

  Communicator& group_;
  int me_, n_;
  HostStream stream_;
  std::uint64_t hash_ = 14695981039346656037u;
};

}  // namespace

std::uint64_t check_collectives(Communicator& group, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return Checks<float>(group).run();
    case DType::f64:
      return Checks<double>(group).run();
    case DType::bf16:
      return Checks<bfloat16>(group).run();
    case DType::i32:
      return Checks<std::int32_t>(group).run();
    case DType::i64:
      return Checks<std::int64_t>(group).run();
    case DType::u8:
      return Checks<std::uint8_t>(group).run();
  }
  return 0;
}

std::uint64_t check_collectives(World& world) {
  std::vector<std::vector<RankId>> member_lists{ranks_below(world.size())};
  std::vector<RankId> reversed = member_lists[0], alike;  // alike: the ranks of this one's parity
  std::ranges::reverse(reversed);
  for (int rank = world.rank().value % 2; rank < world.size(); rank += 2) alike.emplace_back(rank);
  member_lists.push_back(reversed);
  member_lists.push_back(alike);
  std::uint64_t hash = 0;
  for (const auto& members : member_lists) {
    const auto group = world.make_group(members, "checks");
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8})
      hash = hash * 31 + check_collectives(*group, dtype);
  }
  return hash;
}

}  // namespace weft
