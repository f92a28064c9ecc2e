#include "tests/comm/collective_checks.h"

#include <algorithm>
#include <list>

#include "tests/comm/ranks.h"
#include "weft/base/random.h"

namespace weft {

namespace {

constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::i16, DType::i32, DType::i64, DType::u8};

template <class T>
T value_of(int rank, std::int64_t index, std::string_view what) {
  const std::uint64_t key = random_key(static_cast<std::uint64_t>(rank), what);
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(philox(key, static_cast<std::uint64_t>(index))[0] >> 4);
  else  // of very different sizes, so that the order of a sum matters
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

// Host memory, or memory of a device that queues its work on a stream. Device memory is allocated once: freeing waits
// for all of the device's work, including kernels that wait for this rank.
class Place {
 public:
  explicit Place(Device* device) : device_(device) {
    if (device == nullptr) return;
    device->bind_thread();
    stream_ = device->make_stream(1);
    arena_ = device->allocate(arena_bytes);
  }
  Stream& stream() { return stream_ ? *stream_ : host_stream_; }
  // Host memory is allocated exactly, so that a sanitizer notices an access beyond it. Device memory is valid until the
  // next reset().
  std::byte* allocate(std::size_t bytes) {
    if (device_ == nullptr) return host_.emplace_back(bytes).data();
    std::byte* at = arena_->data() + used_;
    used_ += (bytes + 255) / 256 * 256;
    if (used_ > arena_bytes) throw RunError("the tests' arena is too small");
    return at;
  }
  void reset() {
    host_.clear();
    used_ = 0;
  }
  void copy_in(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (device_ == nullptr) {
      std::memcpy(to, from, bytes);
      return;
    }
    device_->copy_in(*stream_, to, from, bytes);
    stream_->synchronize();
  }
  void copy_out(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (device_ == nullptr) {
      std::memcpy(to, from, bytes);
      return;
    }
    device_->copy_out(*stream_, to, from, bytes);
    stream_->synchronize();
  }
  // Runs every sum once: a GPU loads a kernel's code at its first use, and may then wait for all of its work.
  void warm_up() {
    if (device_ == nullptr) return;
    const std::byte* inputs[] = {arena_->data() + 256, arena_->data() + 512};
    for (const DType dtype : all_dtypes)
      for (const Reduction reduction : {Reduction::sum, Reduction::max})
        device_->reduce(*stream_, reduction, dtype, arena_->data(), inputs, 1);
    device_->copy(*stream_, arena_->data(), arena_->data() + 256, 1);
    stream_->synchronize();
  }

 private:
  static constexpr std::size_t arena_bytes = 4 << 20;
  Device* device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Memory> arena_;
  std::size_t used_ = 0;
  std::list<std::vector<std::byte>> host_;
  HostStream host_stream_;
};

// A one-dimensional tensor, filled with 0xee unless values are given.
template <class T>
class PlacedTensor {
 public:
  PlacedTensor(Place& place, const std::vector<T>& values)
      : place_(place),
        tensor_(place.allocate(values.size() * sizeof(T)), dtype_of<T>(),
                Shape{static_cast<std::int64_t>(values.size())}) {
    place.copy_in(tensor_.data, values.data(), values.size() * sizeof(T));
  }
  PlacedTensor(Place& place, std::int64_t count) : PlacedTensor(place, untouched(count)) {}

  static std::vector<T> untouched(std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    if (count > 0) std::memset(static_cast<void*>(values.data()), 0xee, values.size() * sizeof(T));
    return values;
  }
  operator const Tensor&() const { return tensor_; }
  const Tensor& tensor() const { return tensor_; }
  std::vector<T> values() const { return values_of(tensor_); }
  std::vector<T> values_of(const Tensor& part) const {
    std::vector<T> values(static_cast<std::size_t>(part.shape.elements()));
    place_.copy_out(values.data(), part.data, values.size() * sizeof(T));
    return values;
  }

 private:
  Place& place_;
  Tensor tensor_;
};

// One dtype on one group.
template <class T>
class Checks {
 public:
  Checks(Communicator& group, Place& place)
      : group_(group), me_(group.rank()), n_(group.size()), place_(place), stream_(place_.stream()) {}

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

  // The definition: left to right in rank order, in float for bf16.
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
    place_.reset();
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
    const PlacedTensor<T> send(
        place_,
        values_of<T>(me_, std::accumulate(send_counts.begin(), send_counts.end(), std::int64_t{0}), "all_to_all"));
    // A buffer larger than the data received, as for routed rows.
    const PlacedTensor<T> receive(place_, static_cast<std::int64_t>(expected.size()) + 3);
    group_.all_to_all(stream_, send, send_counts, receive, receive_counts);
    std::vector<T> got = receive.values();
    expect("all_to_all beyond its counts", std::vector<T>(got.end() - 3, got.end()), PlacedTensor<T>::untouched(3));
    got.resize(expected.size());
    expect("all_to_all", got, expected);
  }

  void all_gather_even(std::int64_t count) {
    place_.reset();
    std::vector<T> expected;
    for (int p = 0; p < n_; ++p)
      for (const T& value : values_of<T>(p, count, "all_gather")) expected.push_back(value);
    const PlacedTensor<T> send(place_, values_of<T>(me_, count, "all_gather"));
    const PlacedTensor<T> receive(place_, count * n_);
    group_.all_gather(stream_, send, receive);
    expect("all_gather", receive.values(), expected);
    const PlacedTensor<T> in_place(place_, count * n_);
    const Tensor mine = in_place.tensor().slice_rows(me_ * count, count);
    const std::vector<T> part = values_of<T>(me_, count, "all_gather");
    place_.copy_in(mine.data, part.data(), part.size() * sizeof(T));
    group_.all_gather(stream_, mine, in_place);
    expect("all_gather in place", in_place.values(), expected);
  }

  void all_gather_uneven() {
    place_.reset();
    std::vector<std::int64_t> counts;
    std::vector<T> expected;
    for (int p = 0; p < n_; ++p) {
      counts.push_back(count_between(p, 2, 11));
      for (const T& value : values_of<T>(p, counts.back(), "uneven")) expected.push_back(value);
    }
    const PlacedTensor<T> send(place_, values_of<T>(me_, counts[static_cast<std::size_t>(me_)], "uneven"));
    const PlacedTensor<T> receive(place_, static_cast<std::int64_t>(expected.size()));
    group_.all_gather(stream_, send, receive, counts);
    expect("uneven all_gather", receive.values(), expected);
  }

  void reduce_scatter(std::int64_t count, Reduction reduction) {
    place_.reset();
    std::vector<T> expected;
    for (std::int64_t i = 0; i < count; ++i)
      expected.push_back(reduced(reduction, n_, me_ * count + i, "reduce_scatter"));
    const PlacedTensor<T> send(place_, values_of<T>(me_, count * n_, "reduce_scatter"));
    const PlacedTensor<T> receive(place_, count);
    group_.reduce_scatter(stream_, send, receive, reduction);
    expect("reduce_scatter", receive.values(), expected);
    expect("what reduce_scatter sent", send.values(), values_of<T>(me_, count * n_, "reduce_scatter"));
    const Tensor mine = send.tensor().slice_rows(me_ * count, count);
    group_.reduce_scatter(stream_, send, mine, reduction);
    expect("reduce_scatter in place", send.values_of(mine), expected);
  }

  void all_reduce(std::int64_t count, Reduction reduction) {
    place_.reset();
    std::vector<T> expected;
    for (std::int64_t i = 0; i < count; ++i) expected.push_back(reduced(reduction, n_, i, "all_reduce"));
    const PlacedTensor<T> send(place_, values_of<T>(me_, count, "all_reduce"));
    const PlacedTensor<T> receive(place_, count);
    group_.all_reduce(stream_, send, receive, reduction);
    expect("all_reduce", receive.values(), expected);
    group_.all_reduce(stream_, send, send, reduction);
    expect("all_reduce in place", send.values(), expected);
  }

  void broadcast(std::int64_t count, int root) {
    place_.reset();
    const PlacedTensor<T> data(place_, values_of<T>(me_, count, "broadcast"));
    group_.broadcast(stream_, data, root);
    expect("broadcast", data.values(), values_of<T>(root, count, "broadcast"));
  }

  // Every member sends to the next and receives from the previous one, concurrently.
  void ring(std::int64_t count) {
    place_.reset();
    const int next = (me_ + 1) % n_, previous = (me_ + n_ - 1) % n_;
    const PlacedTensor<T> send(place_, values_of<T>(me_, count, "ring")), receive(place_, count);
    const Transfer both[] = {{Transfer::Direction::send, next, send},
                             {Transfer::Direction::receive, previous, receive}};
    group_.transfer(stream_, both);
    expect("ring", receive.values(), values_of<T>(previous, count, "ring"));
  }

  // Member 0 sends two tensors to each of the others, which answer one by one.
  void pairs() {
    place_.reset();
    for (int p = 1; p < n_; ++p) {
      if (me_ == 0) {
        const PlacedTensor<T> first(place_, values_of<T>(p, 4, "first")), second(place_, values_of<T>(p, 9, "second"));
        const PlacedTensor<T> answer(place_, 5);
        const Transfer both[] = {{Transfer::Direction::send, p, first}, {Transfer::Direction::send, p, second}};
        group_.transfer(stream_, both);
        group_.receive(stream_, answer, p);
        expect("answer", answer.values(), values_of<T>(p, 5, "answer"));
      } else if (me_ == p) {
        const PlacedTensor<T> first(place_, 4), second(place_, 9);
        group_.receive(stream_, first, 0);
        group_.receive(stream_, second, 0);
        const PlacedTensor<T> answer(place_, values_of<T>(p, 5, "answer"));
        group_.send(stream_, answer, 0);
        expect("first of two", first.values(), values_of<T>(p, 4, "first"));
        expect("second of two", second.values(), values_of<T>(p, 9, "second"));
      }
    }
  }

  Communicator& group_;
  int me_, n_;
  Place& place_;
  Stream& stream_;
  std::uint64_t hash_ = 14695981039346656037u;
};

std::uint64_t check_in(Place& place, Communicator& group, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return Checks<float>(group, place).run();
    case DType::f64:
      return Checks<double>(group, place).run();
    case DType::bf16:
      return Checks<bfloat16>(group, place).run();
    case DType::i16:
      return Checks<std::int16_t>(group, place).run();
    case DType::i32:
      return Checks<std::int32_t>(group, place).run();
    case DType::i64:
      return Checks<std::int64_t>(group, place).run();
    case DType::u8:
      return Checks<std::uint8_t>(group, place).run();
  }
  return 0;
}

}  // namespace

std::uint64_t check_collectives(Communicator& group, DType dtype, Device* device) {
  Place place(device);
  return check_in(place, group, dtype);
}

std::uint64_t check_collectives(World& world, Device* device) {
  std::vector<std::vector<RankId>> member_lists{ranks_below(world.size())};
  std::vector<RankId> reversed = member_lists[0], same_parity;  // as this rank's
  std::ranges::reverse(reversed);
  for (int rank = world.rank().value % 2; rank < world.size(); rank += 2) same_parity.emplace_back(rank);
  member_lists.push_back(reversed);
  member_lists.push_back(same_parity);
  Place place(device);
  place.warm_up();
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const auto& members : member_lists) groups.push_back(world.make_group(members, "checks", device));
  groups[0]->barrier(place.stream());
  std::uint64_t hash = 0;
  try {
    for (const auto& group : groups)
      for (const DType dtype : all_dtypes) hash = hash * 31 + check_in(place, *group, dtype);
    groups[0]->barrier(place.stream());
  } catch (...) {
    world.throw_if_ended();  // queued work was aborted then, so report why the run ended
    throw;
  }
  return hash;
}

}  // namespace weft
